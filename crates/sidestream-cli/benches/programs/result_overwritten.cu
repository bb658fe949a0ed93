// The kernel of the second step overwrites the result that the first step still downloads.
// expect: warning WAR
// exact: error WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *in = device_memory(), *out = device_memory();
    float *host[2] = {pinned_memory(0), pinned_memory(0)};
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t computed = new_event(), downloaded = new_event();

    for (int step = 0; step < 2; step++) {
        must(cudaMemsetAsync(in, 0x3e + step, BYTES, compute));
        if (repaired && step > 0) must(cudaStreamWaitEvent(compute, downloaded, 0));
        scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
        must(cudaEventRecord(computed, compute));
        must(cudaStreamWaitEvent(copies, computed, 0));
        must(cudaMemcpyAsync(host[step], out, BYTES, cudaMemcpyDeviceToHost, copies)); // first
        must(cudaEventRecord(downloaded, copies));
    }
    must(cudaDeviceSynchronize());
    printf("%g\n", host[0][COUNT - 1]);
    return finish(host[1]);
}
