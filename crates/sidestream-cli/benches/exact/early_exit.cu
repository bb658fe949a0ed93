// Most threads leave early, others by a divergent branch, and a predicate masks stores: what they would have touched is
// not touched. Racy, one thread fewer leaves.
// expect: error WAW

#include "exact.cuh"

__global__ void some(uint8_t *values, int end, int skipped) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= end) return;
    if (i % 3 == 1) {
        if (i % 2 == 0) return;
        values[i] = 1;
    } else if (i != skipped)
        values[i] = 2;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int end = 3000;
    uint8_t *values = memory_of(PAGE);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + end, 1);

    some<<<64, THREADS, 0, a>>>(values, repaired ? end : end + 1, 600); // first
    fill_bytes<<<8, THREADS, 0, b>>>(values + end, 100, 3);             // second
    fill_bytes<<<8, THREADS, 0, b>>>(values + 600, 1, 3);
    fill_bytes<<<8, THREADS, 0, b>>>(values + 604, 1, 3);
    return finish_bytes(values, PAGE);
}
