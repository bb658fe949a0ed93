// sirius-db/sirius #1566: a view of a cached chunk is released by copying the chunk and dropping its owner. The owner takes
// the chunk back, and fills it, while the copy still reads it.
// expect: error HOST_WAR

#include "program.cuh"
#include <cstring>
#include <memory>

/// The owner's end: the chunk is the cache's again, which marks it as unused.
static void reclaim(float *chunk) {
    memset(chunk, 0xff, BYTES); // second
}

struct OwningView {
    std::shared_ptr<float> chunk;

    void release(float *to, cudaStream_t stream, bool repaired) {
        must(cudaMemcpyAsync(to, chunk.get(), BYTES, cudaMemcpyHostToDevice, stream)); // first
        if (repaired) must(cudaStreamSynchronize(stream));
        chunk.reset();
    }
};

int main(int count, char **) {
    const bool repaired = count > 1;
    OwningView view = {std::shared_ptr<float>(pinned_memory(1), reclaim)};
    float *column = device_memory();
    cudaStream_t stream = new_stream();

    occupy(stream);
    view.release(column, stream, repaired);
    return finish(column);
}
