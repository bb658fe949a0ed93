// NVIDIA/cuCascade #158: a pool of small pinned slabs hands a freed slab to the next scan at once. That scan writes its
// statistics over those of the last one, which the upload still reads.
// expect: error HOST_WAR

#include "program.cuh"
#include <vector>

struct SlabPool {
    struct Slab {
        float *values;
        cudaEvent_t freed;
    };
    std::vector<Slab> free = {{pinned_memory(0, FEW), new_event()}};

    Slab allocate(bool repaired) {
        Slab slab = free.back();
        free.pop_back();
        if (repaired) must(cudaEventSynchronize(slab.freed));
        return slab;
    }
    void deallocate(Slab slab, cudaStream_t stream) {
        must(cudaEventRecord(slab.freed, stream));
        free.push_back(slab);
    }
};

static void upload_statistics(SlabPool &pool, float least, float *to, cudaStream_t stream, bool repaired) {
    SlabPool::Slab slab = pool.allocate(repaired);
    for (int i = 0; i < FEW; i++) slab.values[i] = least + i;                           // second
    must(cudaMemcpyAsync(to, slab.values, FEW_BYTES, cudaMemcpyHostToDevice, stream)); // first
    pool.deallocate(slab, stream);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    SlabPool pool;
    float *scans[] = {device_memory(FEW_BYTES), device_memory(FEW_BYTES)};
    cudaStream_t streams[] = {new_stream(), new_stream()};

    occupy(streams[0]);
    for (int i = 0; i < 2; i++) upload_statistics(pool, 1000 * i, scans[i], streams[i], repaired);
    return finish(scans[0], FEW);
}
