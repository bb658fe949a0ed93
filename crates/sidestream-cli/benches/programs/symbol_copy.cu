// A variable of the device is uploaded in one stream and downloaded in another.
// expect: error RAW

#include "program.cuh"

__device__ float table[COUNT];

int main(int count, char **) {
    const bool repaired = count > 1;
    float *from = pinned_memory(1), *to = pinned_memory(0);
    cudaStream_t up = new_stream(), down = new_stream();

    must(cudaMemcpyToSymbolAsync(table, from, BYTES, 0, cudaMemcpyHostToDevice, up)); // first
    if (repaired) order(down, up);
    must(cudaMemcpyFromSymbolAsync(to, table, BYTES, 0, cudaMemcpyDeviceToHost, down)); // second
    must(cudaDeviceSynchronize());
    return finish(to);
}
