// Asynchronous copies of 16 bytes to shared memory, whose last 4 are filled with zeros (`cp.async` with its source
// size): these 4 are not read, and another stream writes them. Racy, it writes the byte before them, too.
// expect: error WAR|RAW

#include "exact.cuh"
#include <cuda_pipeline.h>

__global__ void load(unsigned *sum, const uint4 *from) {
    __shared__ uint4 shared[THREADS];
    __pipeline_memcpy_async(shared + threadIdx.x, from + threadIdx.x, 16, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    atomicAdd(sum, shared[threadIdx.x].w + (shared[threadIdx.x].x & 1));
}

__global__ void store(uint8_t *to, int first) {
    for (int byte = first; byte < 16; byte++) to[16 * threadIdx.x + byte] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(16 * THREADS);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 11, 16 * (THREADS - 1) + 1);

    load<<<1, THREADS, 0, a>>>(sum, reinterpret_cast<uint4 *>(values)); // first
    store<<<1, THREADS, 0, b>>>(values, repaired ? 12 : 11);            // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
