// Two streams download into one pinned buffer, the second before the first download is complete.
// expect: error WAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values[2];
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) {
        values[i] = device_memory();
        streams[i] = new_stream();
        must(cudaMemsetAsync(values[i], 0x3e + i, BYTES, streams[i]));
    }
    must(cudaMemcpyAsync(host, values[0], BYTES, cudaMemcpyDeviceToHost, streams[0])); // first
    if (repaired) {
        must(cudaStreamSynchronize(streams[0]));
        printf("%g\n", host[COUNT - 1]);
    }
    must(cudaMemcpyAsync(host, values[1], BYTES, cudaMemcpyDeviceToHost, streams[1])); // second
    must(cudaStreamSynchronize(streams[1]));
    return finish(host);
}
