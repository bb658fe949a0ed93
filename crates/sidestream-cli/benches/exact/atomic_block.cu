// Atomics of a block's scope in two streams are no atomics for each other. Repaired, they have the GPU's scope.
// expect: error

#include "exact.cuh"

__global__ void add(unsigned *word) { atomicAdd(word, 1); }
__global__ void add_in_block(unsigned *word) { atomicAdd_block(word, 1); }

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *word = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(word, 4);

    auto kernel = repaired ? add : add_in_block;
    kernel<<<1, THREADS, 0, a>>>(word); // first
    kernel<<<1, THREADS, 0, b>>>(word); // second
    must(cudaGetLastError());
    return finish_bytes(word, 4);
}
