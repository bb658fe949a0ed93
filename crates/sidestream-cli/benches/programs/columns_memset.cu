// Two memsets of columns of one pitched array, in two streams. Their ranges interleave; only racy they share a column.
// expect: error WAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t width = 1024 * sizeof(float), height = 1024, half = width / 2;
    char *rows;
    size_t pitch;
    must(cudaMallocPitch(&rows, &pitch, width, height));
    cudaStream_t a = new_stream(), b = new_stream();

    const size_t wide = repaired ? half : half + sizeof(float);
    must(cudaMemset2DAsync(rows, pitch, 0x3e, wide, height, a));        // first
    must(cudaMemset2DAsync(rows + half, pitch, 0x3f, half, height, b)); // second
    must(cudaDeviceSynchronize());
    float *out = device_memory();
    must(cudaMemcpy2D(out, width, rows, pitch, width, height, cudaMemcpyDeviceToDevice));
    return finish(out, 1024 * 1024);
}
