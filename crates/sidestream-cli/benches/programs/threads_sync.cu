// One thread waits for its stream and tells another, which then uses the buffer in a stream of its own. Locks between
// threads are not seen, so a thread's wait counts for all. Racy, the thread tells and does not wait.
// expect: error RAW

#include "program.cuh"
#include <future>
#include <thread>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    std::promise<void> uploaded;

    std::thread producer([&] {
        cudaStream_t copies = new_stream();
        must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
        if (repaired) must(cudaStreamSynchronize(copies));
        uploaded.set_value();
    });
    uploaded.get_future().wait();
    cudaStream_t compute = new_stream();
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    producer.join();
    return finish(out);
}
