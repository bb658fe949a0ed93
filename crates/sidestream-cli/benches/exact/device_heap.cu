// Two kernels allocate memory on the device, and print. That is the driver's own memory: no race of the program.
// expect: silent

#include "exact.cuh"

__global__ void allocate(unsigned *sum) {
    auto *own = static_cast<unsigned *>(malloc(64));
    if (!own) return;
    for (int i = 0; i < 16; i++) own[i] = i;
    atomicAdd(sum, own[threadIdx.x % 16]);
    free(own);
    if (threadIdx.x == 0) printf("allocated\n");
}

int main(int, char **) {
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t streams[] = {new_stream(), new_stream()};
    for (cudaStream_t stream : streams) allocate<<<1, 64, 0, stream>>>(sum);
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
