// A blocking download waits for blocking streams, but not for a non-blocking one.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values = device_memory();
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, repaired ? cudaStreamDefault : cudaStreamNonBlocking));

    must(cudaMemsetAsync(values, 0x3f, BYTES, stream));                  // first
    must(cudaMemcpy(host, values, BYTES, cudaMemcpyDeviceToHost)); // second
    return finish(host);
}
