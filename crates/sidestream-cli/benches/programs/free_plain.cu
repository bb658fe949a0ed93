// Stream-ordered memory is freed by cudaFree, which was not seen to wait for such memory.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values;
    cudaStream_t stream = new_stream();

    must(cudaMallocAsync(&values, BYTES, stream));
    must(cudaMemsetAsync(values, 0x3f, BYTES, stream));
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    must(cudaFree(values)); // second
    must(cudaStreamSynchronize(stream));
    return finish(host);
}
