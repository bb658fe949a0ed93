// Two streams add to the same words by bulk reductions, each of them an atomic of the GPU's scope. Racy, a third
// stream's plain store goes to the last word; repaired, beside it.
// expect: error

#include "bulk.cuh"

constexpr unsigned EACH = 4096;

__global__ void add(uint8_t *to) {
    __shared__ alignas(16) unsigned shared[EACH / 4];
    for (int i = threadIdx.x; i < EACH / 4; i += blockDim.x) shared[i] = 1;
    publish();
    if (threadIdx.x > 0) return;
    bulk_add(to, shared, EACH);
    wait_for_stores();
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    uint8_t *values = memory_of(2 * EACH), *end = values + EACH;
    cudaStream_t a = new_stream(), b = new_stream(), c = new_stream();
    races(end - 4, 4);

    add<<<4, THREADS, 0, a>>>(values);                          // first
    add<<<4, THREADS, 0, b>>>(values);                          // first
    fill_bytes<<<1, 4, 0, c>>>(repaired ? end : end - 4, 4, 1); // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * EACH);
}
