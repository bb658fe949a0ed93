// With a default stream for each thread, two threads' default streams are not ordered, though the threads are.
// expect: error RAW
// flags: -default-stream per-thread

#include "program.cuh"
#include <thread>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaEvent_t uploaded = new_event();

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice)); // first
    must(cudaEventRecord(uploaded));
    std::thread other([&] {
        if (repaired) must(cudaStreamWaitEvent(0, uploaded, 0));
        scale<<<BLOCKS, THREADS>>>(out, in, 2, COUNT); // second
        must(cudaGetLastError());
    });
    other.join();
    return finish(out);
}
