// An asynchronous upload from pageable memory: whether it blocks the host is open, but another stream is not ordered.
// expect: error RAW

#include "program.cuh"
#include <vector>

int main(int count, char **) {
    const bool repaired = count > 1;
    std::vector<float> host(COUNT, 1.0f);
    float *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpyAsync(in, host.data(), BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
