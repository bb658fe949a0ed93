// A kernel stores 4 bytes a thread at every second word; another stream's memset covers the word between two of them,
// and racy the first byte of the next.
// expect: error WAW

#include "exact.cuh"

__global__ void store_every_second(uint32_t *to, int words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < words) to[2 * i] = 0x01010101;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *values = memory_of<uint32_t>(PAGE);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 102, 1);

    store_every_second<<<PAGE / 8 / THREADS, THREADS, 0, a>>>(values, PAGE / 8); // first
    must(cudaMemsetAsync(values + 101, 2, repaired ? 4 : 5, b));                 // second
    return finish_bytes(values, PAGE);
}
