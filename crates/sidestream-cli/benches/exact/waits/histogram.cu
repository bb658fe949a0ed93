// Two streams count into one histogram by atomics, which needs no order between them; a third clears it, and reads it
// when both are done.

#include "waits.cuh"

__global__ void count_into(unsigned *histogram, const uint8_t *values, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(histogram + values[i], 1);
}

int main() {
    uint8_t *values = memory_of(PAGE);
    auto *histogram = memory_of<unsigned>(1024), *sum = memory_of<unsigned>(4);
    cudaStream_t counting[] = {new_stream(), new_stream()}, reading = new_stream();

    for (int step = 0; step < 3; step++) {
        must(cudaMemsetAsync(histogram, 0, 1024, reading));
        cudaEvent_t cleared = recorded(reading);
        for (cudaStream_t stream : counting) {
            WAIT(cudaStreamWaitEvent(stream, cleared, 0));
            count_into<<<1, THREADS, 0, stream>>>(histogram, values, PAGE);
            cudaEvent_t counted = recorded(stream);
            WAIT(cudaStreamWaitEvent(reading, counted, 0));
        }
        add_up<unsigned><<<1, THREADS, 0, reading>>>(sum, histogram, 256);
    }
    return finish_bytes(sum, 4);
}
