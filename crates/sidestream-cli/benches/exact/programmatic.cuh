// Programmatic dependent launch: a kernel that may start before its predecessor in the stream has ended.

#pragma once

#include "exact.cuh"

/// Writes 1 to each byte, after the kernel that follows may have started.
static __global__ void produce(uint8_t *values, size_t count) {
    cudaTriggerProgrammaticLaunchCompletion();
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) values[i] = 1;
}

/// Launches a kernel of one block that may start early.
template <class... Parameters, class... Arguments>
void launch_early(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = THREADS;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    must(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}
