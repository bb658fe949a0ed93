// Two kernels write a byte in each page of 256 MiB, beside each other. Racy, they share the byte in one of the pages.
// expect: error WAW

#include "exact.cuh"

__global__ void one_a_page(uint8_t *values, int at, int page, int shared) {
    values[(blockIdx.x * size_t(PAGE)) + (blockIdx.x == page ? shared : at)] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int pages = 4096;
    uint8_t *values = memory_of(pages * PAGE);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 3333 * PAGE + 77, 1);

    one_a_page<<<pages, 1, 0, a>>>(values, 77, -1, 0);                    // first
    one_a_page<<<pages, 1, 0, b>>>(values, 78, repaired ? -1 : 3333, 77); // second
    must(cudaGetLastError());
    return finish_bytes(values, pages * PAGE);
}
