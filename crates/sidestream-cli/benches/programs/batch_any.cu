// A batch copy whose sources may be read at any time: before earlier work of its own stream is complete.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *staging = pinned_memory(0), *from = device_memory(), *to = device_memory();
    cudaStream_t stream = new_stream();
    void *targets[] = {to};
    const void *sources[] = {staging};
    size_t sizes[] = {BYTES}, first_of[] = {0};
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderAny;

    must(cudaMemsetAsync(from, 0x3f, BYTES, stream));
    must(cudaMemcpyAsync(staging, from, BYTES, cudaMemcpyDeviceToHost, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    must(cudaMemcpyBatchAsync(targets, sources, sizes, 1, &attributes, first_of, 1, stream)); // second
    must(cudaStreamSynchronize(stream));
    return finish(to);
}
