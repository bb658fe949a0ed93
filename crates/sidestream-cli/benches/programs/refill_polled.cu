// The host asks the stream until it says yes, and then refills the buffer. Racy, it asks once and goes on.
// expect: error HOST_WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *values = device_memory();
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, stream)); // first
    while (cudaStreamQuery(stream) == cudaErrorNotReady && repaired) {}
    for (int i = 0; i < COUNT; i++) host[i] = 2; // second
    return finish(values);
}
