// The host waits for an event of another stream. That is enough if the other stream has waited for the upload; racy, it has
// not.
// expect: error HOST_WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t computed = new_event();

    occupy(copies);
    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    must(cudaMemsetAsync(out, 0, BYTES, compute));
    must(cudaEventRecord(computed, compute));
    must(cudaEventSynchronize(computed));
    for (int i = 0; i < COUNT; i++) host[i] = 2; // second
    return finish(in);
}
