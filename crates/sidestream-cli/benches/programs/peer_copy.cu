// A copy to another device; the stream that reads it there does not wait.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    int devices;
    must(cudaGetDeviceCount(&devices));
    needs(devices > 1, "two devices");
    float *from = device_memory();
    cudaStream_t copies = new_stream();
    must(cudaMemsetAsync(from, 0x3f, BYTES, copies));
    must(cudaSetDevice(1));
    float *in = device_memory(), *out = device_memory();
    cudaStream_t compute = new_stream();
    must(cudaSetDevice(0));
    must(cudaMemcpyPeerAsync(in, 1, from, 0, BYTES, copies)); // first
    cudaEvent_t copied = new_event();
    must(cudaEventRecord(copied, copies));

    must(cudaSetDevice(1));
    if (repaired) must(cudaStreamWaitEvent(compute, copied, 0));
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    must(cudaStreamSynchronize(copies));
    return finish(out);
}
