// Four streams pass a buffer around a ring. Each also waits for what the one before it has waited for: one of the two
// waits is not needed.

#include "waits.cuh"

int main() {
    float *values = device_memory();
    cudaStream_t streams[] = {new_stream(), new_stream(), new_stream(), new_stream()};
    cudaEvent_t last = recorded(streams[3]), last_but_one = last;

    for (int step = 0; step < 8; step++) {
        cudaStream_t stream = streams[step % 4];
        WAIT(cudaStreamWaitEvent(stream, last_but_one, 0));
        WAIT(cudaStreamWaitEvent(stream, last, 0));
        increase<<<BLOCKS, THREADS, 0, stream>>>(values, 1, COUNT);
        last_but_one = last;
        last = recorded(stream);
    }
    return finish(values);
}
