// Memory that is registered is freed while an upload may still read it.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = static_cast<float *>(aligned_alloc(4096, FEW_BYTES)), *values = device_memory(FEW_BYTES);
    for (int i = 0; i < FEW; i++) host[i] = i;
    must(cudaHostRegister(host, FEW_BYTES, cudaHostRegisterDefault));
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyAsync(values, host, FEW_BYTES, cudaMemcpyHostToDevice, stream)); // first
    if (repaired) {
        must(cudaStreamSynchronize(stream));
        must(cudaHostUnregister(host));
    }
    free(host); // second
    return finish(values, FEW);
}
