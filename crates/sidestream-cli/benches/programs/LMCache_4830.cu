// LMCache/LMCache #4830: chunks that are not pinned go through a pinned temporary. It returns to the allocator's cache while
// its upload reads it, and the next chunk is pinned into the same memory.
// expect: error HOST_WAR

#include "program.cuh"
#include <cstring>
#include <vector>

/// An allocator that keeps what is freed for the next who asks.
static std::vector<float *> cache = {};

static float *pin_memory(const std::vector<float> &chunk) {
    if (cache.empty()) cache.push_back(pinned_memory(0));
    float *pinned = cache.back();
    cache.pop_back();
    memcpy(pinned, chunk.data(), BYTES); // second
    return pinned;
}

static void scatter_to_paged(float *page, const std::vector<float> &chunk, cudaStream_t stream, bool repaired) {
    float *pinned = pin_memory(chunk);
    must(cudaMemcpyAsync(page, pinned, BYTES, cudaMemcpyHostToDevice, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    cache.push_back(pinned);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *pages[] = {device_memory(), device_memory()};
    cudaStream_t stream = new_stream();

    occupy(stream);
    for (int group = 0; group < 2; group++)
        scatter_to_paged(pages[group], std::vector<float>(COUNT, group + 1.0f), stream, repaired);
    return finish(pages[0]);
}
