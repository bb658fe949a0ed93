// A kernel that may start before its predecessor in the stream has ended (programmatic dependent launch), and does not
// wait for its results. Repaired, it calls cudaGridDependencySynchronize.
// expect: race RAW|WAW|WAR
// repaired: warns
// exact: error RAW
// exact repaired: silent

#include "program.cuh"

__global__ void produce(float *values) {
    cudaTriggerProgrammaticLaunchCompletion();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = 1;
}

__global__ void consume(float *out, const float *values) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * values[i];
}

__global__ void consume_in_order(float *out, const float *values) {
    cudaGridDependencySynchronize();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * values[i];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    int major;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    needs(major >= 9, "compute capability 9.0");
    float *values = device_memory(), *out = device_memory();
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = BLOCKS;
    config.blockDim = THREADS;
    config.stream = new_stream();
    config.attrs = &early;
    config.numAttrs = 1;

    produce<<<BLOCKS, THREADS, 0, config.stream>>>(values); // first
    auto kernel = repaired ? consume_in_order : consume;
    must(cudaLaunchKernelEx(&config, kernel, out, static_cast<const float *>(values))); // second
    return finish(out);
}
