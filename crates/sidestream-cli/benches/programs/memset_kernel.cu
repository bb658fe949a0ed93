// A kernel adds to a buffer that another stream still clears. The memset surely writes, so this is an error.
// expect: error RAW|WAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *values = device_memory();
    cudaStream_t clearing = new_stream(), compute = new_stream();

    must(cudaMemsetAsync(values, 0, BYTES, clearing)); // first
    if (repaired) order(compute, clearing);
    increase<<<BLOCKS, THREADS, 0, compute>>>(values, 1, COUNT); // second
    must(cudaGetLastError());
    return finish(values);
}
