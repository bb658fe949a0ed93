// Memory of cudaMallocAsync is allocated and freed in one stream, and used in two others.

#include "waits.cuh"

int main() {
    float *out = device_memory(), *other = device_memory();
    cudaStream_t owner = new_stream(), writing = new_stream(), reading = new_stream();

    for (int step = 0; step < 2; step++) {
        float *values;
        must(cudaMallocAsync(&values, BYTES, owner));
        cudaEvent_t allocated = recorded(owner);
        WAIT(cudaStreamWaitEvent(writing, allocated, 0));
        must(cudaMemsetAsync(values, 0x3f, BYTES, writing));
        cudaEvent_t written = recorded(writing);
        WAIT(cudaStreamWaitEvent(reading, written, 0));
        scale<<<BLOCKS, THREADS, 0, reading>>>(out, values, 2, COUNT);
        increase<<<BLOCKS, THREADS, 0, writing>>>(other, 1, COUNT);
        cudaEvent_t read = recorded(reading), all = recorded(writing);
        WAIT(cudaStreamWaitEvent(owner, read, 0));
        WAIT(cudaStreamWaitEvent(owner, all, 0));
        must(cudaFreeAsync(values, owner));
        must(cudaStreamSynchronize(owner));
    }
    return finish(out);
}
