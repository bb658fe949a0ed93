// A kernel whose parameters are passed in one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER) reads an upload without a wait.
// expect: error RAW
// flags: -lcuda

#include "program.cuh"
#include <cuda.h>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaFunction_t kernel;
    must(cudaGetFuncBySymbol(&kernel, (const void *)scale));
    struct {
        float *out;
        const float *in;
        float by;
        int count;
    } parameters = {out, in, 2, COUNT};
    size_t bytes = sizeof parameters;
    void *packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters,
                      CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, compute, nullptr, packed); // second
    return finish(out);
}
