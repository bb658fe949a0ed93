// One event is recorded in two streams, and the wait sees only the newer record.
// expect: error RAW

#include "program.cuh"

__global__ void sum(float *out, const float *a, const float *b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a[i] + b[i];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *out = device_memory(), *in[2];
    cudaStream_t copies[2] = {new_stream(), new_stream()}, compute = new_stream();
    cudaEvent_t uploaded = new_event();

    for (float *&one : in) one = device_memory();
    for (int i = 0; i < 2; i++) {
        must(cudaMemcpyAsync(in[i], host, BYTES, cudaMemcpyHostToDevice, copies[i])); // first
        must(cudaEventRecord(uploaded, copies[i]));
        if (repaired || i == 1) must(cudaStreamWaitEvent(compute, uploaded, 0));
    }
    sum<<<BLOCKS, THREADS, 0, compute>>>(out, in[0], in[1]); // second
    must(cudaGetLastError());
    return finish(out);
}
