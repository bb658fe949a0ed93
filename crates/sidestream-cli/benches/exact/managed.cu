// Two streams write two parts of managed memory. Racy, they overlap by one byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 10 * PAGE, meet = 123457;
    uint8_t *values;
    must(cudaMallocManaged(&values, bytes));
    memset(values, 0, bytes);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + meet - 1, 1);

    fill_bytes<<<8, THREADS, 0, a>>>(values, meet, 1); // first
    const size_t from = repaired ? meet : meet - 1;
    fill_bytes<<<8, THREADS, 0, b>>>(values + from, bytes - from, 2); // second
    must(cudaGetLastError());
    return finish_bytes(values, bytes);
}
