// Three streams work on the even, the odd and the last values of one buffer. The waits between the first two order
// nothing that touches the same bytes; those for the third do.

#include "waits.cuh"

__global__ void every_second(float *values, int from, int count) {
    for (int i = from + 2 * threadIdx.x; i < count; i += 2 * blockDim.x) values[i] += 1;
}

int main() {
    const int count = 10000, most = 9001;
    float *values = device_memory(count * sizeof(float));
    cudaStream_t even = new_stream(), odd = new_stream(), last = new_stream();

    for (int step = 0; step < 3; step++) {
        every_second<<<1, THREADS, 0, even>>>(values, 0, most);
        cudaEvent_t evens = recorded(even);
        WAIT(cudaStreamWaitEvent(odd, evens, 0));
        every_second<<<1, THREADS, 0, odd>>>(values, 1, most);
        cudaEvent_t odds = recorded(odd);
        WAIT(cudaStreamWaitEvent(last, odds, 0));
        increase<<<8, THREADS, 0, last>>>(values + most - 1, 1, count - most + 1);
        cudaEvent_t lasts = recorded(last);
        WAIT(cudaStreamWaitEvent(even, lasts, 0));
    }
    return finish(values, count);
}
