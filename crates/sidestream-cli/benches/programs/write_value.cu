// A stream waits for a value that another writes (cuStreamWaitValue32, cuStreamWriteValue32); racy, it does not wait.
// expect: error RAW
// flags: -lcuda

#include "program.cuh"
#include <cuda.h>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    CUdeviceptr flag = reinterpret_cast<CUdeviceptr>(device_memory(64));
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    needs(cuStreamWriteValue32(copies, flag, 1, 0) == CUDA_SUCCESS, "stream memory operations");
    if (repaired) cuStreamWaitValue32(compute, flag, 1, CU_STREAM_WAIT_VALUE_EQ);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
