// Chunks with base pointer and offset: all uploads, then all kernels, then all downloads. With an argument, all kernels
// run in one stream, which waits for all uploads. In order, and silent, both times.
// expect: silent

#include "program.cuh"

__global__ void twice(float *values, int offset) {
    int i = offset + blockIdx.x * blockDim.x + threadIdx.x;
    values[i] *= 2;
}

int main(int count, char **) {
    const bool in_one = count > 1;
    const int chunks = 4, each = COUNT / chunks;
    const size_t bytes = each * sizeof(float);
    float *host = pinned_memory(4), *values = device_memory();
    cudaStream_t streams[chunks];
    for (int i = 0; i < chunks; i++) streams[i] = new_stream();

    for (int i = 0; i < chunks; i++)
        must(cudaMemcpyAsync(values + i * each, host + i * each, bytes, cudaMemcpyHostToDevice, streams[i]));
    if (in_one)
        for (cudaStream_t stream : streams) order(streams[0], stream);
    for (int i = 0; i < chunks; i++)
        twice<<<each / THREADS, THREADS, 0, in_one ? streams[0] : streams[i]>>>(values, i * each);
    if (in_one)
        for (cudaStream_t stream : streams) order(stream, streams[0]);
    for (int i = 0; i < chunks; i++)
        must(cudaMemcpyAsync(host + i * each, values + i * each, bytes, cudaMemcpyDeviceToHost, streams[i]));
    must(cudaDeviceSynchronize());
    return finish(host);
}
