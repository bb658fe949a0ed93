// Memory is unregistered while an upload may still read it.
// expect: race UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = static_cast<float *>(aligned_alloc(4096, BYTES)), *values = device_memory();
    for (int i = 0; i < COUNT; i++) host[i] = 1;
    must(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    cudaStream_t copies = new_stream();

    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) must(cudaStreamSynchronize(copies));
    must(cudaHostUnregister(host)); // second
    must(cudaStreamSynchronize(copies));
    free(host);
    return finish(values);
}
