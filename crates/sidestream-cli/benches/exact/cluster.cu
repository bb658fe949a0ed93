// Blocks of a cluster write each other's shared memory, then their own bytes. Racy, another stream writes one of those.
// expect: error WAW

#include "exact.cuh"
#include <cooperative_groups.h>

__global__ void __cluster_dims__(4) exchange(uint8_t *values) {
    __shared__ int shared[THREADS];
    auto cluster = cooperative_groups::this_cluster();
    int *next = cluster.map_shared_rank(shared, (cluster.block_rank() + 1) % cluster.num_blocks());
    next[threadIdx.x] = 1;
    cluster.sync();
    values[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x];
    cluster.sync();
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    uint8_t *values = memory_of(PAGE), *end = values + 8 * THREADS;
    cudaStream_t a = new_stream(), b = new_stream();
    races(end - 1, 1);

    exchange<<<8, THREADS, 0, a>>>(values);                             // first
    fill_bytes<<<1, THREADS, 0, b>>>(repaired ? end : end - 1, 100, 2); // second
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
