// A pipeline of chunks, each kernel with the pointer to its chunk. The wait for one chunk is missing.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const int chunks = 4, each = COUNT / chunks;
    const size_t bytes = each * sizeof(float);
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t uploaded[chunks];

    for (int i = 0; i < chunks; i++) {
        uploaded[i] = new_event();
        must(cudaMemcpyAsync(in + i * each, host + i * each, bytes, cudaMemcpyDefault, copies)); // first
        must(cudaEventRecord(uploaded[i], copies));
        // The wait for the third chunk is missing; that for the fourth comes too late.
        if (i != 2 || repaired) must(cudaStreamWaitEvent(compute, uploaded[i], 0));
        scale<<<each / THREADS, THREADS, 0, compute>>>(out + i * each, in + i * each, 2, each); // second
        must(cudaGetLastError());
    }
    return finish(out);
}
