// Two kernels write neighbouring ranges that cross several pages and meet within one. Racy, they overlap by one byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 100 * PAGE, meet = 37 * PAGE + 12345;
    uint8_t *values = memory_of(bytes);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + meet - 1, 1);

    fill<uint8_t><<<64, THREADS, 0, a>>>(values, meet, 1); // first
    const size_t from = repaired ? meet : meet - 1;
    fill<uint8_t><<<64, THREADS, 0, b>>>(values + from, bytes - from, 2); // second
    must(cudaGetLastError());
    return finish_bytes(values, bytes);
}
