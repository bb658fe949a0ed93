// The source of a batch copy grows by realloc, which moves it, before the copy has read it.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *values = static_cast<float *>(malloc(FEW_BYTES));
    // In the way of an array that would grow in its place.
    void *behind = malloc(64);
    for (int i = 0; i < FEW; i++) values[i] = i;
    void *to = device_memory(FEW_BYTES);
    const void *from = values;
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderStream};
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    values = static_cast<float *>(realloc(values, 2 * FEW_BYTES)); // second
    must(cudaStreamSynchronize(stream));
    printf("%g %d\n", values[FEW - 1], behind != nullptr);
    return finish(static_cast<float *>(to), FEW);
}
