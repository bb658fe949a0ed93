// A kernel prefetches, and does not read, what another stream writes. Racy, it reads one byte of it.
// expect: error RAW

#include "exact.cuh"

__global__ void prefetch(unsigned *sum, const uint8_t *from, bool reads) {
    const uint8_t *at = from + 128 * (blockIdx.x * blockDim.x + threadIdx.x);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    asm volatile("prefetchu.L1 [%0];" ::"l"(at));
    if (reads && at == from) *sum = *at;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values, 1);

    fill_bytes<<<8, THREADS, 0, a>>>(values, PAGE, 1);      // first
    prefetch<<<2, THREADS, 0, b>>>(sum, values, !repaired); // second
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
