// A kernel that reads an upload for which it does not wait.
//
//   nvcc -g -o missing_wait missing_wait.cu
//   sidestream check -- ./missing_wait           names the pair, and the wait that is missing
//   sidestream check -- ./missing_wait repaired  finds nothing

#include <cstdio>
#include <cuda_runtime.h>

__global__ void scale(float *out, const float *in, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * by;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int n = 1 << 20;
    const size_t bytes = n * sizeof(float);
    float *host, *in, *out;
    cudaStream_t copies, compute;
    cudaEvent_t uploaded;
    cudaMallocHost(&host, bytes);
    cudaMalloc(&in, bytes);
    cudaMalloc(&out, bytes);
    cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&uploaded, cudaEventDisableTiming);
    for (int i = 0; i < n; i++) host[i] = 1;

    cudaMemcpyAsync(in, host, bytes, cudaMemcpyHostToDevice, copies);
    cudaEventRecord(uploaded, copies);
    if (repaired) cudaStreamWaitEvent(compute, uploaded, 0);
    scale<<<(n + 255) / 256, 256, 0, compute>>>(out, in, 2, n);
    cudaMemcpyAsync(host, out, bytes, cudaMemcpyDeviceToHost, compute);
    cudaStreamSynchronize(compute);
    printf("%g\n", host[n - 1]);
    return cudaGetLastError() != cudaSuccess;
}
