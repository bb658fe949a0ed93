// The host asks an event until it is complete, which orders as a wait does. Racy, it asks once and goes on.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const int times = 64;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaEvent_t uploaded = new_event();

    // Many uploads, so that the first question is answered with "not ready".
    for (int i = 0; i < times; i++) must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    must(cudaEventRecord(uploaded, copies));
    while (cudaEventQuery(uploaded) == cudaErrorNotReady && repaired) {}
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    return finish(out);
}
