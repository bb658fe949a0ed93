// `cuda::memcpy_async` by a group, in pieces of 4 bytes. Racy, another stream writes the last byte that it reads.
// expect: error WAR

#include "exact.cuh"
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>

__global__ void load(unsigned *sum, const unsigned *from, size_t bytes) {
    extern __shared__ unsigned shared[];
    auto block = cooperative_groups::this_thread_block();
    cooperative_groups::memcpy_async(block, shared, from, cuda::aligned_size_t<4>(bytes));
    cooperative_groups::wait(block);
    atomicAdd(sum, shared[threadIdx.x]);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 4 * 4001;
    uint8_t *values = memory_of(2 * bytes), *end = values + bytes;
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(end - 1, 1);

    load<<<1, THREADS, bytes, a>>>(sum, reinterpret_cast<unsigned *>(values), bytes); // first
    fill_bytes<<<8, THREADS, 0, b>>>(repaired ? end : end - 1, 100, 1);               // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
