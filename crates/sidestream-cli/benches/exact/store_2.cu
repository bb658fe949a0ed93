// A kernel stores 2 bytes a thread; in another stream, one reads single bytes: racy, from the last one stored on.
// expect: error RAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t words = 10001, end = 2 * words;
    auto *values = memory_of<uint16_t>(4 * words);
    auto *sum = memory_of<unsigned>(4);
    const uint8_t *from = reinterpret_cast<uint8_t *>(values) + (repaired ? end : end - 1);
    cudaStream_t a = new_stream(), b = new_stream();
    races(reinterpret_cast<uint8_t *>(values) + end - 1, 1);

    fill<uint16_t><<<8, THREADS, 0, a>>>(values, words, 0x0101); // first
    add_up<uint8_t><<<8, THREADS, 0, b>>>(sum, from, 64);        // second
    must(cudaGetLastError());
    return finish_bytes(values, 4 * words);
}
