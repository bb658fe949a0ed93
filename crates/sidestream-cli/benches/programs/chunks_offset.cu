// A pipeline of chunks whose kernels get the base pointer and an offset: the calls do not show which bytes a kernel
// touches, so a missing order cannot be seen, and the repaired program must not be accused.
// expect: unseen
// exact: error RAW|WAR|WAW

#include "program.cuh"

__global__ void root(float *values, int offset) {
    int i = offset + blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = sqrtf(values[i]);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int chunks = 4, each = COUNT / chunks;
    const size_t bytes = each * sizeof(float);
    float *host = pinned_memory(4), *values = device_memory();
    cudaStream_t streams[chunks];
    for (int i = 0; i < chunks; i++) streams[i] = new_stream();

    for (int i = 0; i < chunks; i++) {
        int at = i * each;
        cudaStream_t compute = repaired ? streams[i] : streams[(i + 1) % chunks];
        must(cudaMemcpyAsync(values + at, host + at, bytes, cudaMemcpyHostToDevice, streams[i]));
        root<<<each / THREADS, THREADS, 0, compute>>>(values, at);
        must(cudaMemcpyAsync(host + at, values + at, bytes, cudaMemcpyDeviceToHost, streams[i]));
    }
    must(cudaDeviceSynchronize());
    return finish(host);
}
