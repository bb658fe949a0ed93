// Loads and stores by generic addresses, which lie in shared or in global memory: only the latter race.
// expect: error WAW

#include "exact.cuh"

__device__ __noinline__ void put(volatile int *to, int value) { *to = value; }

__global__ void both(int *values, int from_here_global) {
    __shared__ int shared[THREADS];
    int *to = int(threadIdx.x) < from_here_global ? shared : values;
    put(to + threadIdx.x, 1);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *values = memory_of<int>(PAGE);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 99, 4);

    both<<<1, THREADS, 0, a>>>(values, repaired ? 100 : 99); // first
    fill_bytes<<<8, THREADS, 0, b>>>(values, 400, 2);        // second
    return finish_bytes(values, PAGE);
}
