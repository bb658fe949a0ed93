// The wait is in the stream that recorded the event, where it orders nothing.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t uploaded = new_event();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    must(cudaEventRecord(uploaded, copies));
    must(cudaStreamWaitEvent(repaired ? compute : copies, uploaded, 0));
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
