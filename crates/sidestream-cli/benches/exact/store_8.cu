// A kernel reads 8 bytes a thread; in another stream, one stores single bytes from the end on: racy, from the last one
// read.
// expect: error WAR

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t words = 5001, end = 8 * words;
    uint8_t *values = memory_of(2 * end), *to = values + (repaired ? end : end - 1);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + end - 1, 1);

    add_up<<<8, THREADS, 0, a>>>(sum, reinterpret_cast<const uint64_t *>(values), words); // first
    fill<uint8_t><<<8, THREADS, 0, b>>>(to, 64, 1);                                       // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * end);
}
