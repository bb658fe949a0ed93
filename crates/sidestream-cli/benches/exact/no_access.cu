// Two kernels in two streams get one pointer, and work in dynamic shared memory and local arrays only.
// expect: silent

#include "exact.cuh"

__global__ void elsewhere(float *values, int by, float *never) {
    extern __shared__ float shared[];
    float local[64];
    for (int i = 0; i < 64; i++) local[(i * by) % 64] = i;
    shared[threadIdx.x] = local[(threadIdx.x * by) % 64];
    __syncthreads();
    if (shared[(threadIdx.x + 1) % blockDim.x] < 0) values[threadIdx.x] = shared[0];
    if (never) *never = 1;
}

int main(int, char **) {
    float *values = device_memory();
    cudaStream_t streams[] = {new_stream(), new_stream()};
    must(cudaFuncSetAttribute(elsewhere, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));

    for (cudaStream_t stream : streams) elsewhere<<<8, THREADS, 64 << 10, stream>>>(values, 7, nullptr);
    must(cudaGetLastError());
    return finish(values);
}
