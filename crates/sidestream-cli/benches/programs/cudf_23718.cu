// NVIDIA/cudf #23718: a function uploads a local vector and returns. The batch copy reads the vector in stream order, when it
// is gone and its memory belongs to another.
// expect: error UAF

#include "program.cuh"
#include <vector>

static void make_comparators(void *to, cudaStream_t stream, bool repaired) {
    std::vector<float> comparators(FEW);
    for (int i = 0; i < FEW; i++) comparators[i] = i;
    const void *from = comparators.data();
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderStream};
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
} // second

int main(int count, char **) {
    const bool repaired = count > 1;
    float *comparators = device_memory(FEW_BYTES);
    cudaStream_t stream = new_stream();

    occupy(stream);
    make_comparators(comparators, stream, repaired);
    std::vector<float> rows(FEW, -1.0f);
    must(cudaStreamSynchronize(stream));
    printf("%g\n", rows[FEW - 1]);
    return finish(comparators, FEW);
}
