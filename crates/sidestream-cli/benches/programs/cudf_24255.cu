// NVIDIA/cudf #24255: the pinned offsets of a concatenation go back to their pool before the upload has read them. The pool
// makes the next owner's stream wait; the next owner's own stores wait for nothing.
// expect: error HOST_WAR

#include "program.cuh"

/// Hands out one pinned block, in the order of streams.
class PinnedPool {
    float *block = pinned_memory(0, FEW);
    cudaEvent_t returned = new_event();

public:
    float *allocate(cudaStream_t stream) {
        must(cudaStreamWaitEvent(stream, returned, 0));
        return block;
    }
    void deallocate(cudaStream_t stream) { must(cudaEventRecord(returned, stream)); }
};

static void concatenate(PinnedPool &pool, float *to, cudaStream_t stream, bool repaired) {
    float *offsets = pool.allocate(stream);
    for (int i = 0; i < FEW; i++) offsets[i] = i;
    must(cudaMemcpyAsync(to, offsets, FEW_BYTES, cudaMemcpyHostToDevice, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    pool.deallocate(stream);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    PinnedPool pool;
    float *offsets = device_memory(FEW_BYTES);
    cudaStream_t stream = new_stream(), other = new_stream();

    occupy(stream);
    concatenate(pool, offsets, stream, repaired);
    float *rows = pool.allocate(other);
    for (int i = 0; i < FEW; i++) rows[i] = -1; // second
    return finish(offsets, FEW);
}
