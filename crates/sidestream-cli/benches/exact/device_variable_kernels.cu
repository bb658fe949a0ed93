// Two kernels write one `__device__` variable that no call names. Repaired, they write two halves of it.
// expect: error WAW

#include "exact.cuh"

__device__ uint8_t values[4096];

__global__ void set(int from, int end) {
    for (int i = from + threadIdx.x; i < end; i += blockDim.x) values[i] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    cudaStream_t a = new_stream(), b = new_stream();

    set<<<1, THREADS, 0, a>>>(0, 2001);                      // first
    set<<<1, THREADS, 0, b>>>(repaired ? 2001 : 2000, 4096); // second
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    printf("complete\n");
    return 0;
}
