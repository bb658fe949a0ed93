// A kernel reads a constant variable while another stream uploads into it. Loads of constant memory are not heard.
// expect: unseen

#include "exact.cuh"

__constant__ float factors[256];

__global__ void scaled(float *out) { out[threadIdx.x] = factors[threadIdx.x]; }

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(2), *out = device_memory(sizeof factors);
    cudaStream_t compute = new_stream(), copies = new_stream();
    must(cudaMemcpyToSymbol(factors, host, sizeof factors));
    must(cudaDeviceSynchronize());

    scaled<<<1, 256, 0, compute>>>(out);
    if (repaired) order(copies, compute);
    must(cudaMemcpyToSymbolAsync(factors, host, sizeof factors, 0, cudaMemcpyHostToDevice, copies));
    return finish(out, 256);
}
