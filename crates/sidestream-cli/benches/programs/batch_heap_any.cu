// A batch copy may read its source at any time until it is complete; the vector gets other values before.
// expect: error HOST_WAR

#include "program.cuh"
#include <vector>

int main(int count, char **) {
    const bool repaired = count > 1;
    std::vector<float> values(FEW, 1.0f);
    void *to = device_memory(FEW_BYTES);
    const void *from = values.data();
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderAny};
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    for (float &value : values) value = 2; // second
    must(cudaStreamSynchronize(stream));   // second
    return finish(static_cast<float *>(to), FEW);
}
