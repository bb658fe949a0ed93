// The host reads a pinned buffer before the download into it is complete.
// expect: error HOST_RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values = device_memory();
    cudaStream_t stream = new_stream();

    must(cudaMemsetAsync(values, 0x3f, BYTES, stream));
    occupy(stream);
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    float last = host[COUNT - 1]; // second
    printf("%g\n", last);
    return finish(host);
}
