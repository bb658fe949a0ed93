// facebookincubator/velox #17163: an Arrow array is imported by a batch copy in stream order, and released as soon as the
// import has returned. The driver reads freed memory.
// expect: error UAF

#include "program.cuh"

/// As in Arrow's C data interface: its last owner calls `release`.
struct ArrowArray {
    float *values;
    void (*release)(ArrowArray *);
};

static void release(ArrowArray *array) {
    free(array->values); // second
    array->release = nullptr;
}

static void from_arrow(const ArrowArray &array, void *to, cudaStream_t stream) {
    const void *from = array.values;
    size_t bytes = FEW_BYTES, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderStream};
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
}

int main(int count, char **) {
    const bool repaired = count > 1;
    ArrowArray array = {static_cast<float *>(malloc(FEW_BYTES)), release};
    for (int i = 0; i < FEW; i++) array.values[i] = i;
    float *column = device_memory(FEW_BYTES);
    cudaStream_t stream = new_stream();

    occupy(stream);
    from_arrow(array, column, stream);
    if (repaired) must(cudaStreamSynchronize(stream));
    array.release(&array);
    must(cudaStreamSynchronize(stream));
    return finish(column, FEW);
}
