// Two streams change the same words atomically, by each kind of atomic of the GPU's scope or the system's, with a
// result and without: no race.
// expect: silent

#include "exact.cuh"

__global__ void change(unsigned *words, float *real, double *wide, unsigned long long *longs, unsigned *result) {
    atomicAdd(words, 1);
    atomicAdd_system(words + 1, 1);
    atomicMax(words + 2, 7);
    atomicOr(words + 3, 3);
    atomicAdd(real, 1.0f);
    atomicAdd(wide, 1.0);
    atomicAdd(longs, 1ull);
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float4 *>(real) + 1, float4{1, 1, 1, 1});
#endif
    if (atomicCAS(words + 4, 0, 1) == 5 || atomicExch(words + 5, 1) == 5 || atomicAdd(words + 6, 1) == ~0u) *result = 1;
}

int main(int, char **) {
    auto *words = memory_of<unsigned>(64), *result = memory_of<unsigned>(4);
    float *real = device_memory(32);
    auto *wide = memory_of<double>(8);
    auto *longs = memory_of<unsigned long long>(8);
    cudaStream_t streams[] = {new_stream(), new_stream()};

    for (cudaStream_t stream : streams) change<<<32, THREADS, 0, stream>>>(words, real, wide, longs, result);
    must(cudaGetLastError());
    return finish_bytes(words, 64);
}
