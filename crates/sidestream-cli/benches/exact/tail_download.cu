// A kernel writes an odd number of bytes; a download in another stream takes what follows: racy, from the last one on.
// expect: error RAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t end = 100003;
    uint8_t *values = memory_of(2 * end);
    void *host = pinned_memory(0);
    cudaStream_t compute = new_stream(), copies = new_stream();
    races(values + end - 1, 1);

    fill<uint8_t><<<8, THREADS, 0, compute>>>(values, end, 1); // first
    const size_t from = repaired ? end : end - 1;
    must(cudaMemcpyAsync(host, values + from, 2 * end - from, cudaMemcpyDeviceToHost, copies)); // second
    return finish_bytes(values, 2 * end);
}
