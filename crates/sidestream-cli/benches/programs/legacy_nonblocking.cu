// An upload in the legacy default stream does not order a non-blocking stream; it does order a blocking one.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t compute;
    must(cudaStreamCreateWithFlags(&compute, repaired ? cudaStreamDefault : cudaStreamNonBlocking));

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice)); // first
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT);      // second
    must(cudaGetLastError());
    return finish(out);
}
