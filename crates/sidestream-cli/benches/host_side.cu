// What watching the host's side costs: nanoseconds for each copy and its wait, batch copy of a source on the heap, and call of the
// allocator while such a copy is in flight. Run it plainly, under `sidestream check --light --` and under `sidestream check --`.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#define must(call)                                                                                                    \
    do {                                                                                                              \
        cudaError_t code = call;                                                                                      \
        if (code != cudaSuccess) {                                                                                    \
            std::printf("line %d: %s\n", __LINE__, cudaGetErrorString(code));                                         \
            std::exit(70);                                                                                            \
        }                                                                                                             \
    } while (0)

// The median of five, each of many repetitions.
template <class Work> double nanoseconds(int times, Work work) {
    std::vector<double> all;
    for (int round = 0; round < 5; round++) {
        auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < times; i++) work();
        std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        all.push_back(took.count() / times);
    }
    std::sort(all.begin(), all.end());
    return all[2];
}

int main() {
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *device;
    must(cudaMalloc(&device, 16 << 20));
    for (size_t bytes : {4 << 10, 64 << 10, 1 << 20, 16 << 20}) {
        void *pinned;
        must(cudaMallocHost(&pinned, bytes));
        for (auto kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost}) {
            bool up = kind == cudaMemcpyHostToDevice;
            double each = nanoseconds(2000, [&] {
                must(cudaMemcpyAsync(up ? device : pinned, up ? pinned : device, bytes, kind, stream));
                must(cudaStreamSynchronize(stream));
            });
            std::printf("%s of %zu KiB: %.0f ns\n", up ? "upload" : "download", bytes >> 10, each);
        }
        must(cudaFreeHost(pinned));
    }
    void *to[] = {device};
    size_t first_of[] = {0};
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    for (size_t bytes : {size_t(256), size_t(4 << 10)}) {
        std::vector<char> heap(bytes);
        const void *from[] = {heap.data()};
        double each = nanoseconds(2000, [&] {
            must(cudaMemcpyBatchAsync(to, from, &bytes, 1, &attributes, first_of, 1, stream));
            must(cudaStreamSynchronize(stream));
        });
        std::printf("batch of %zu bytes: %.0f ns\n", bytes, each);
    }
    auto allocates = [] {
        void *volatile block = std::malloc(64);
        std::free(block);
    };
    std::printf("malloc and free: %.1f ns\n", nanoseconds(1000000, allocates));
    std::vector<char> heap(4096);
    const void *from[] = {heap.data()};
    size_t bytes = heap.size();
    must(cudaMemcpyBatchAsync(to, from, &bytes, 1, &attributes, first_of, 1, stream));
    std::printf("malloc and free beside a copy: %.1f ns\n", nanoseconds(1000000, allocates));
    must(cudaStreamSynchronize(stream));
    return 0;
}
