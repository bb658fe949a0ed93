// A download reads the result of a kernel for which its stream does not wait. That the kernel writes is a guess.
// expect: warning RAW
// exact: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemsetAsync(in, 0x3f, BYTES, compute));
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // first
    must(cudaGetLastError());
    if (repaired) order(copies, compute);
    must(cudaMemcpyAsync(host, out, BYTES, cudaMemcpyDeviceToHost, copies)); // second
    must(cudaStreamSynchronize(copies));
    return finish(host);
}
