// A kernel reads pinned memory itself, while a download in another stream still fills it.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *from = device_memory(), *out = device_memory(), *mapped;
    cudaStream_t copies = new_stream(), compute = new_stream();
    must(cudaHostGetDevicePointer(&mapped, host, 0));
    must(cudaMemsetAsync(from, 0x3f, BYTES, copies));

    must(cudaMemcpyAsync(host, from, BYTES, cudaMemcpyDeviceToHost, copies)); // first
    if (repaired) order(compute, copies);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, mapped, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
