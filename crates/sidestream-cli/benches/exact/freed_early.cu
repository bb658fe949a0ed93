// Memory is freed in one stream while a kernel of another may still write it, by a pointer that lies in memory.
// expect: error UAF

#include "exact.cuh"

__global__ void through(uint8_t **to) { (*to)[threadIdx.x] = 1; }

int main(int count, char **) {
    const bool repaired = count > 1;
    cudaStream_t a = new_stream(), b = new_stream();
    uint8_t *values;
    must(cudaMallocAsync(&values, PAGE, a));
    auto *at = memory_of<uint8_t *>(8);
    must(cudaMemcpy(at, &values, sizeof values, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());

    through<<<1, THREADS, 0, b>>>(at); // first
    must(cudaGetLastError());
    if (repaired) order(a, b);
    must(cudaFreeAsync(values, a)); // second
    return finish_bytes(at, 0);
}
