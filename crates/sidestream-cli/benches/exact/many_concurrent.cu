// Four kernels in four streams meet at a barrier of their own: none ends before all have started. Their bytes are
// disjoint; racy, those of two share one.
// expect: error WAW

#include "exact.cuh"

__global__ void together(unsigned *arrived, unsigned all, uint8_t *to, int bytes) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (atomicCAS(arrived, ~0u, ~0u) < all) {}
    }
    __syncthreads();
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int streams = 4, each = 1001;
    auto *arrived = memory_of<unsigned>(4);
    uint8_t *values = memory_of(PAGE);
    races(values + 3 * each, 1);
    cudaStream_t stream[streams];
    for (cudaStream_t &one : stream) one = new_stream();

    for (int i = 0; i < streams; i++) {
        const int bytes = each + (i == 2 && !repaired);
        together<<<1, THREADS, 0, stream[i]>>>(arrived, streams, values + i * each, bytes); // first second
    }
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
