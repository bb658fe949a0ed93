// Two kernels write two parts of pinned memory of the host. Racy, they overlap by one byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *values = reinterpret_cast<uint8_t *>(pinned_memory(0));
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 5000, 1);

    fill_bytes<<<8, THREADS, 0, a>>>(values, repaired ? 5000 : 5001, 1); // first
    fill_bytes<<<8, THREADS, 0, b>>>(values + 5000, 5000, 2);            // second
    must(cudaGetLastError());
    return finish_bytes(values, 10000);
}
