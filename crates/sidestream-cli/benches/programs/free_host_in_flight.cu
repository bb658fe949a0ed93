// Pinned memory is freed while an upload may still read it.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *values = device_memory();
    cudaStream_t copies = new_stream();

    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) must(cudaStreamSynchronize(copies));
    must(cudaFreeHost(host)); // second
    return finish(values);
}
