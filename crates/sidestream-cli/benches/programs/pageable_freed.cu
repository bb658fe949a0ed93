// A plain asynchronous upload of pageable memory: the driver reads 64 KiB or less during the call, so they may be freed at
// once. Repaired is the same with 1 MiB, of which CUDA promises nothing.
// expect: silent
// repaired: warns

#include "program.cuh"
#include <vector>

int main(int count, char **) {
    const int values = count > 1 ? 1 << 18 : 1 << 14;
    float *to = device_memory();
    cudaStream_t stream = new_stream();

    occupy(stream);
    {
        std::vector<float> from(values, 1.0f);
        must(cudaMemcpyAsync(to, from.data(), values * sizeof(float), cudaMemcpyHostToDevice, stream));
    }
    std::vector<float> next(values, 2.0f);
    must(cudaStreamSynchronize(stream));
    printf("%g\n", next[0]);
    return finish(to);
}
