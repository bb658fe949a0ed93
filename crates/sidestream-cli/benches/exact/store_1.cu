// Stores of 1 byte in two streams; racy, the last of one is the first of the other.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 12345;
    uint8_t *values = memory_of(2 * bytes), *next = values + (repaired ? bytes : bytes - 1);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + bytes - 1, 1);

    fill<uint8_t><<<8, THREADS, 0, a>>>(values, bytes, 1); // first
    fill<uint8_t><<<8, THREADS, 0, b>>>(next, 100, 2);     // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * bytes);
}
