// Two threads, each with a stream, hand a buffer over under a lock. It orders the threads; the streams need an event.
// expect: error RAW

#include "program.cuh"
#include <condition_variable>
#include <mutex>
#include <thread>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    std::mutex lock;
    std::condition_variable changed;
    cudaEvent_t uploaded = new_event();
    bool ready = false;

    std::thread consumer([&] {
        cudaStream_t compute = new_stream();
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return ready; });
        if (repaired) must(cudaStreamWaitEvent(compute, uploaded, 0));
        scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
        must(cudaGetLastError());
    });
    std::thread producer([&] {
        cudaStream_t copies = new_stream();
        std::lock_guard<std::mutex> held(lock);
        must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
        must(cudaEventRecord(uploaded, copies));
        ready = true;
        changed.notify_one();
    });
    producer.join();
    consumer.join();
    return finish(out);
}
