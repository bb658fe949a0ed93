// A kernel reads a counter that another stream still adds to. Repaired, it reads it by an atomic addition of nothing.
// expect: error

#include "exact.cuh"

__global__ void add(unsigned *word) { atomicAdd(word, 1); }

__global__ void look(unsigned *counter, unsigned *out, bool atomically) {
    *out = (atomically ? atomicAdd(counter, 0) : *counter) > 1u << 30;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *words = memory_of<unsigned>(64), *out = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(words, 4);

    add<<<8, THREADS, 0, a>>>(words);           // first
    look<<<1, 1, 0, b>>>(words, out, repaired); // second
    must(cudaGetLastError());
    return finish_bytes(words, 64);
}
