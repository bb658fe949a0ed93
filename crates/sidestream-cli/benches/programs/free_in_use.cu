// Memory is freed while a kernel may still use it. That cudaFree waits is not promised, only seen: a warning.
// expect: warning UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *in = device_memory(), *out = device_memory();
    cudaStream_t compute = new_stream();

    must(cudaMemsetAsync(in, 0x3f, BYTES, compute)); // first
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // first
    must(cudaGetLastError());
    if (repaired) must(cudaStreamSynchronize(compute));
    must(cudaFree(in)); // second
    return finish(out);
}
