// A batch copy may read a mapping at any time until it is complete; the mapping moves before.
// expect: error UAF

#include "program.cuh"
#include <sys/mman.h>

static void *mapped(void *at, int flags) {
    return mmap(at, FEW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *values = static_cast<float *>(mapped(nullptr, 0)), *elsewhere = static_cast<float *>(mapped(nullptr, 0));
    for (int i = 0; i < FEW; i++) values[i] = i;
    void *to = device_memory(FEW_BYTES);
    const void *from = values;
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderAny};
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    mremap(values, FEW_BYTES, FEW_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere); // second
    mapped(values, MAP_FIXED);
    must(cudaStreamSynchronize(stream));
    return finish(static_cast<float *>(to), FEW);
}
