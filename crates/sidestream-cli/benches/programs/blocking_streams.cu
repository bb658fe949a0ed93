// Two blocking streams are ordered by an empty kernel in the legacy default stream between them, and by nothing else.
// expect: error RAW

#include "program.cuh"

__global__ void nothing() {}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies, compute;
    must(cudaStreamCreate(&copies));
    must(cudaStreamCreate(&compute));

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) nothing<<<1, 1>>>();
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
