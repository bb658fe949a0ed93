// The event is recorded before the upload that it should cover.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t uploaded = new_event();

    if (!repaired) must(cudaEventRecord(uploaded, copies));
    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) must(cudaEventRecord(uploaded, copies));
    must(cudaStreamWaitEvent(compute, uploaded, 0));
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
