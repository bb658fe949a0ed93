// A bulk copy from shared to global memory. Racy, another stream reads the last byte that it writes.
// expect: error RAW

#include "bulk.cuh"

constexpr unsigned EACH = 4080;

__global__ void store(uint8_t *to) {
    __shared__ alignas(16) uint8_t shared[EACH];
    for (int i = threadIdx.x; i < EACH; i += blockDim.x) shared[i] = 1;
    publish();
    if (threadIdx.x > 0) return;
    bulk_store(to + size_t(EACH) * blockIdx.x, shared, EACH);
    wait_for_stores();
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    const int blocks = 33;
    uint8_t *values = memory_of(2 * blocks * EACH), *end = values + blocks * EACH;
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(end - 1, 1);

    store<<<blocks, THREADS, 0, a>>>(values);                                  // first
    add_up<uint8_t><<<8, THREADS, 0, b>>>(sum, repaired ? end : end - 1, 100); // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * blocks * EACH);
}
