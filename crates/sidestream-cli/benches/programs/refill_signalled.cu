// A host function signals that the upload is complete, and the host waits for the signal before it refills the buffer. Racy,
// it does not wait. The calls show neither.
// expect: race HOST_WAR
// repaired: warns

#include "program.cuh"
#include <condition_variable>
#include <mutex>

struct Signal {
    std::mutex lock;
    std::condition_variable changed;
    bool is_uploaded = false;
};

static void uploaded(void *of) {
    Signal *signal = static_cast<Signal *>(of);
    std::lock_guard<std::mutex> held(signal->lock);
    signal->is_uploaded = true;
    signal->changed.notify_one();
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *values = device_memory();
    Signal signal;
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, stream)); // first
    must(cudaLaunchHostFunc(stream, uploaded, &signal));
    if (repaired) {
        std::unique_lock<std::mutex> held(signal.lock);
        signal.changed.wait(held, [&] { return signal.is_uploaded; });
    }
    for (int i = 0; i < COUNT; i++) host[i] = 2; // second
    return finish(values);
}
