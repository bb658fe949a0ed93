// The program ends by a signal after it has raced: the report covers its calls up to there.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    if (!repaired) abort();
    return finish(out);
}
