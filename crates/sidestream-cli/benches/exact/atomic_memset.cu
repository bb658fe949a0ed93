// A counter is cleared in one stream while a kernel in another adds to it: the memset is no atomic.
// expect: error

#include "exact.cuh"

__global__ void add(unsigned *word) { atomicAdd(word, 1); }

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *word = memory_of<unsigned>(64);
    cudaStream_t a = new_stream(), b = new_stream();
    races(word, 4);

    must(cudaMemsetAsync(word, 0, 4, a)); // first
    if (repaired) order(b, a);
    add<<<8, THREADS, 0, b>>>(word); // second
    must(cudaGetLastError());
    return finish_bytes(word, 64);
}
