// A batch copy reads its sources in stream order: also after the call, when another stream already refills one.
// expect: error WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *staging = pinned_memory(1), *in = device_memory(), *other = device_memory();
    cudaStream_t up = new_stream(), down = new_stream();
    void *targets[] = {in, in + COUNT / 2};
    const void *sources[] = {staging, staging + COUNT / 2};
    size_t sizes[] = {BYTES / 2, BYTES / 2}, first_of[] = {0};
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;

    must(cudaMemsetAsync(other, 0x3f, BYTES, down));
    must(cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, first_of, 1, up)); // first
    if (repaired) order(down, up);
    must(cudaMemcpyAsync(staging, other, BYTES, cudaMemcpyDeviceToHost, down)); // second
    must(cudaStreamSynchronize(down));
    return finish(in);
}
