// Two kernels write one buffer in two streams. That they write is a guess.
// expect: warning RAW|WAW
// exact: error WAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *out = device_memory(), *one = device_memory(), *two = device_memory();
    cudaStream_t a = new_stream(), b = new_stream();
    must(cudaMemsetAsync(one, 0x3e, BYTES, a));
    must(cudaMemsetAsync(two, 0x3f, BYTES, b));

    scale<<<BLOCKS, THREADS, 0, a>>>(out, one, 2, COUNT); // first
    if (repaired) order(b, a);
    scale<<<BLOCKS, THREADS, 0, b>>>(out, two, 3, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
