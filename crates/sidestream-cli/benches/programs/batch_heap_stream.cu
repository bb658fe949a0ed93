// A batch copy reads the heap in stream order, after its source has been freed. Repaired, it reads during the call.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *values = new float[FEW];
    for (int i = 0; i < FEW; i++) values[i] = i;
    void *to = device_memory(FEW_BYTES);
    const void *from = values;
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = repaired ? cudaMemcpySrcAccessOrderDuringApiCall : cudaMemcpySrcAccessOrderStream;
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
    delete[] values;                                                                      // second
    must(cudaStreamSynchronize(stream));
    return finish(static_cast<float *>(to), FEW);
}
