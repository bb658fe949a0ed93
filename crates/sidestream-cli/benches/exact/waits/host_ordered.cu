// The host orders three streams: it waits for one before it submits to the next.

#include "waits.cuh"

int main() {
    float *host = pinned_memory(1), *a = device_memory(), *b = device_memory();
    cudaStream_t up = new_stream(), compute = new_stream(), other = new_stream();

    for (int step = 0; step < 3; step++) {
        must(cudaMemcpyAsync(a, host, BYTES, cudaMemcpyHostToDevice, up));
        WAIT(cudaStreamSynchronize(up));
        scale<<<BLOCKS, THREADS, 0, compute>>>(b, a, 2, COUNT);
        cudaEvent_t computed = recorded(compute);
        WAIT(cudaEventSynchronize(computed));
        increase<<<BLOCKS, THREADS, 0, other>>>(b, 1, COUNT);
        WAIT(cudaDeviceSynchronize());
    }
    return finish(b);
}
