// The kernel's pointers are fields of a structure that is passed by value.
// expect: error RAW|WAW

#include "program.cuh"

struct Job {
    int count;
    float by;
    float *out;
    const float *in;
};

__global__ void scale_job(Job job) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < job.count) job.out[i] = job.in[i] * job.by;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    scale_job<<<BLOCKS, THREADS, 0, compute>>>({COUNT, 2, out, in}); // second
    must(cudaGetLastError());
    return finish(out);
}
