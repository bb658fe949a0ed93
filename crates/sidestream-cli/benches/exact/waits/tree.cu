// Four streams fill their vectors, and add them in pairs: a tree of sums. The next round waits for the root.

#include "waits.cuh"

__global__ void add_to(float *to, const float *from) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] += from[i];
}

int main() {
    float *vectors[4];
    cudaStream_t streams[4];
    for (int i = 0; i < 4; i++) vectors[i] = device_memory(), streams[i] = new_stream();

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++) increase<<<BLOCKS, THREADS, 0, streams[i]>>>(vectors[i], i, COUNT);
        for (int apart = 1; apart < 4; apart *= 2)
            for (int i = 0; i < 4; i += 2 * apart) {
                cudaEvent_t ready = recorded(streams[i + apart]);
                WAIT(cudaStreamWaitEvent(streams[i], ready, 0));
                add_to<<<BLOCKS, THREADS, 0, streams[i]>>>(vectors[i], vectors[i + apart]);
            }
        cudaEvent_t root = recorded(streams[0]);
        for (int i = 1; i < 4; i++) WAIT(cudaStreamWaitEvent(streams[i], root, 0));
    }
    return finish(vectors[0]);
}
