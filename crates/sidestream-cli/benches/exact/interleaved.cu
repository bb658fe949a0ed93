// Two streams write the even and the odd bytes of one buffer. Racy, the kernel of the odd ones writes one even byte,
// too.
// expect: error WAW

#include "exact.cuh"

__global__ void every_second(uint8_t *values, int from, int other, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[2 * i + from] = 1;
    if (i == 0 && other >= 0) values[other] = 2;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int each = PAGE;
    uint8_t *values = memory_of(2 * each);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 54322, 1);

    every_second<<<each / THREADS, THREADS, 0, a>>>(values, 0, -1, each);                    // first
    every_second<<<each / THREADS, THREADS, 0, b>>>(values, 1, repaired ? -1 : 54322, each); // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * each);
}
