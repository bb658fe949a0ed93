// An atomic addition in one stream beside a plain store in another. Repaired, the store is to the next word.
// expect: error

#include "exact.cuh"

__global__ void add(unsigned *word) { atomicAdd(word, 1); }

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *words = memory_of<unsigned>(64);
    cudaStream_t a = new_stream(), b = new_stream();
    races(words, 4);

    add<<<8, THREADS, 0, a>>>(words);                                 // first
    fill<unsigned><<<1, 1, 0, b>>>(words + (repaired ? 1 : 0), 1, 9); // second
    must(cudaGetLastError());
    return finish_bytes(words, 64);
}
