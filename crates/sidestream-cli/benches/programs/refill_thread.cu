// Another thread fills a pinned buffer with the next batch as soon as the upload of the last one is queued.
// expect: error HOST_WAR

#include "program.cuh"
#include <future>
#include <thread>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *values = device_memory();
    std::promise<void> is_free;
    cudaStream_t stream = new_stream();

    std::thread loader([&] {
        is_free.get_future().wait();
        for (int i = 0; i < COUNT; i++) host[i] = 2; // second
    });
    occupy(stream);
    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    is_free.set_value();
    loader.join();
    return finish(values);
}
