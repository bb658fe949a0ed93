// A batch copy whose sources are read during the call, before the download that fills one is complete, though both are
// in one stream. What overwrites a source after the call is in order.
// expect: error RAW|HOST_RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *staging = pinned_memory(0), *from = device_memory(), *to = device_memory();
    cudaStream_t stream = new_stream(), other = new_stream();
    void *targets[] = {to};
    const void *sources[] = {staging};
    size_t sizes[] = {BYTES}, first_of[] = {0};
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;

    must(cudaMemsetAsync(from, 0x3f, BYTES, stream));
    must(cudaMemcpyAsync(staging, from, BYTES, cudaMemcpyDeviceToHost, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    must(cudaMemcpyBatchAsync(targets, sources, sizes, 1, &attributes, first_of, 1, stream)); // second
    // In order both times, if the download above is: the source was read before the call returned.
    if (repaired) must(cudaMemcpyAsync(staging, from, BYTES, cudaMemcpyDeviceToHost, other));
    must(cudaDeviceSynchronize());
    return finish(to);
}
