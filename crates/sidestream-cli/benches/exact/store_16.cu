// Stores of 16 bytes (one instruction a thread); another stream stores the byte after the last: racy, its last byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t vectors = 3001, end = 16 * vectors;
    uint8_t *values = memory_of(2 * end), *to = values + (repaired ? end : end - 1);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + end - 1, 1);

    fill<uint4><<<8, THREADS, 0, a>>>(reinterpret_cast<uint4 *>(values), vectors, each_byte<uint4>(1)); // first
    fill<uint8_t><<<1, 1, 0, b>>>(to, 1, 2);                                                            // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * end);
}
