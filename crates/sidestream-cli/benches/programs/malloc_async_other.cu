// Stream-ordered memory is used in another stream, which does not wait for its allocation.
// expect: error UBA

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *values;
    cudaStream_t home = new_stream(), other = new_stream();

    must(cudaMallocAsync(&values, BYTES, home)); // first
    if (repaired) order(other, home);
    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, other)); // second
    order(home, other);
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, home));
    must(cudaFreeAsync(values, home));
    must(cudaStreamSynchronize(home));
    return finish(host);
}
