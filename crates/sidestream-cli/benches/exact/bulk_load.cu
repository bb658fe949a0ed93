// A bulk copy from global to shared memory. Racy, another stream writes the last byte that it reads.
// expect: error WAR

#include "bulk.cuh"

constexpr unsigned EACH = 4080;

__global__ void load(unsigned *sum, const uint8_t *from) {
    __shared__ alignas(16) uint8_t shared[EACH];
    __shared__ uint64_t barrier;
    expect_bytes(&barrier, EACH);
    bulk_load(shared, from + size_t(EACH) * blockIdx.x, EACH, &barrier);
    wait_for_bytes(&barrier);
    atomicAdd(sum, shared[0]);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    const int blocks = 33;
    uint8_t *values = memory_of(2 * blocks * EACH), *end = values + blocks * EACH;
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(end - 1, 1);

    load<<<blocks, 1, 0, a>>>(sum, values);                             // first
    fill_bytes<<<8, THREADS, 0, b>>>(repaired ? end : end - 1, 100, 1); // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
