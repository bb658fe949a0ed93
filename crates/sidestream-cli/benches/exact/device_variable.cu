// A kernel writes the first part of a `__device__` variable; a download takes the rest. Racy, also the last byte
// written.
// expect: error RAW

#include "exact.cuh"

__device__ uint8_t values[4096];

__global__ void set(int end) {
    for (int i = threadIdx.x; i < end; i += blockDim.x) values[i] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int end = 1001, from = repaired ? end : end - 1;
    void *host = pinned_memory(0), *at;
    must(cudaGetSymbolAddress(&at, values));
    cudaStream_t compute = new_stream(), copies = new_stream();
    races(static_cast<uint8_t *>(at) + end - 1, 1);

    set<<<1, THREADS, 0, compute>>>(end);                                                                      // first
    must(cudaMemcpyFromSymbolAsync(host, values, sizeof values - from, from, cudaMemcpyDeviceToHost, copies)); // second
    return finish_bytes(at, sizeof values);
}
