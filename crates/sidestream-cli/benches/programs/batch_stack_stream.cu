// A batch copy reads a structure of a function that has returned, in stream order: other functions have written there since.
// Repaired, it reads during the call.
// expect: error HOST_WAR|UAF

#include "program.cuh"

struct Header {
    float values[64];
};

static void upload(void *to, cudaStream_t stream, bool repaired) {
    Header header;
    for (float &value : header.values) value = 1;
    const void *from = &header;
    size_t bytes = sizeof header, first_of = 0;
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = repaired ? cudaMemcpySrcAccessOrderDuringApiCall : cudaMemcpySrcAccessOrderStream;
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first
}

static float use_stack() {
    float values[4096];
    for (float &value : values) value = -1; // second
    return values[17];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *header = device_memory(sizeof(Header));
    cudaStream_t stream = new_stream();

    occupy(stream);
    upload(header, stream, repaired);
    printf("%g\n", use_stack());
    must(cudaStreamSynchronize(stream)); // second
    return finish(header, 64);
}
