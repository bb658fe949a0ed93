// A cooperative kernel reads an upload for which its stream does not wait.
// expect: error RAW

#include "program.cuh"
#include <cooperative_groups.h>

__global__ void two_passes(float *out, const float *in) {
    auto grid = cooperative_groups::this_grid();
    const unsigned long long all = grid.size(), own = grid.thread_rank();
    for (unsigned long long i = own; i < COUNT; i += all) out[i] = in[i];
    grid.sync();
    for (unsigned long long i = own; i < COUNT; i += all) out[i] += in[COUNT - 1 - i];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    void *parameters[] = {&out, &in};
    must(cudaLaunchCooperativeKernel((void *)two_passes, 32, THREADS, parameters, 0, compute)); // second
    return finish(out);
}
