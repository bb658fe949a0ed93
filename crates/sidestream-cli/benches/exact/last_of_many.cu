// Forty times a kernel writes what one of another stream reads then. Racy, the last pair has no wait; and a module rests meanwhile
// with `--exact=first`, since each pair touches what those before it did.
// expect: error RAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 1 << 20, rounds = 40;
    uint8_t *values = memory_of(rounds * bytes);
    auto *sum = memory_of<unsigned>(sizeof(unsigned));
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + (rounds - 1) * bytes, bytes);

    for (size_t round = 0; round < rounds; round++) {
        uint8_t *at = values + round * bytes;
        fill<<<64, THREADS, 0, a>>>(at, bytes, uint8_t(7)); // first
        if (repaired || round + 1 < rounds) order(b, a);
        add_up<<<64, THREADS, 0, b>>>(sum, at, bytes); // second
        must(cudaGetLastError());
        must(cudaDeviceSynchronize());
    }
    return finish_bytes(values, rounds * bytes);
}
