// A wait refers to the record before it; the event is recorded again for a second upload, which no one waits for.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    const size_t half = BYTES / 2;
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t uploaded = new_event();

    must(cudaMemcpyAsync(in, host, half, cudaMemcpyHostToDevice, copies));
    must(cudaEventRecord(uploaded, copies));
    if (!repaired) must(cudaStreamWaitEvent(compute, uploaded, 0));
    float *rest = in + COUNT / 2;
    must(cudaMemcpyAsync(rest, host + COUNT / 2, half, cudaMemcpyHostToDevice, copies)); // first
    must(cudaEventRecord(uploaded, copies));
    if (repaired) must(cudaStreamWaitEvent(compute, uploaded, 0));
    scale<<<BLOCKS / 2, THREADS, 0, compute>>>(out, in, 2, COUNT / 2);
    scale<<<BLOCKS / 2, THREADS, 0, compute>>>(out + COUNT / 2, rest, 2, COUNT / 2); // second
    must(cudaGetLastError());
    return finish(out);
}
