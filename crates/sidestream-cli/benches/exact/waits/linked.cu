// Kernels reach two buffers by pointers in memory only; a copy in a third stream takes one of them back.

#include "waits.cuh"

struct Pair {
    uint8_t *from, *to;
    int count;
};

__global__ void copy(const Pair *pair) {
    for (int i = threadIdx.x; i < pair->count; i += blockDim.x) pair->to[i] = pair->from[i] + 1;
}

int main() {
    uint8_t *one = memory_of(PAGE), *two = memory_of(PAGE);
    const Pair there = {one, two, 4321}, back = {two, one, 4000}, *pairs[] = {&there, &back};
    auto *on_device = memory_of<Pair>(2 * sizeof(Pair));
    for (int i = 0; i < 2; i++) must(cudaMemcpy(on_device + i, pairs[i], sizeof(Pair), cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
    void *host = pinned_memory(0);
    cudaStream_t streams[] = {new_stream(), new_stream()}, copies = new_stream();

    for (int step = 0; step < 4; step++) {
        cudaStream_t stream = streams[step % 2], other = streams[1 - step % 2];
        cudaEvent_t before = recorded(other), copied = recorded(copies);
        WAIT(cudaStreamWaitEvent(stream, before, 0));
        WAIT(cudaStreamWaitEvent(stream, copied, 0));
        copy<<<1, THREADS, 0, stream>>>(on_device + step % 2);
        cudaEvent_t done = recorded(stream);
        WAIT(cudaStreamWaitEvent(copies, done, 0));
        must(cudaMemcpyAsync(host, two, 4321, cudaMemcpyDeviceToHost, copies));
    }
    return finish_bytes(one, PAGE);
}
