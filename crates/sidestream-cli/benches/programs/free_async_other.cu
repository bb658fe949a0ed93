// Stream-ordered memory is freed in one stream while another still reads it.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values;
    cudaStream_t home = new_stream(), other = new_stream();

    must(cudaMallocAsync(&values, BYTES, home));
    must(cudaMemsetAsync(values, 0x3f, BYTES, home));
    order(other, home);
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, other)); // first
    if (repaired) order(home, other);
    must(cudaFreeAsync(values, home)); // second
    must(cudaStreamSynchronize(other));
    return finish(host);
}
