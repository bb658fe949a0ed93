// Uploads of columns of one pitched array, in two streams. Their ranges interleave; only racy they share a column.
// expect: error WAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t width = 1024 * sizeof(float), height = 1024, half = width / 2;
    float *host = pinned_memory(1);
    char *rows;
    size_t pitch;
    must(cudaMallocPitch(&rows, &pitch, width, height));
    cudaStream_t a = new_stream(), b = new_stream();

    const char *left = reinterpret_cast<const char *>(host), *right = left + half;
    const size_t wide = repaired ? half : half + sizeof(float);
    must(cudaMemcpy2DAsync(rows, pitch, left, width, wide, height, cudaMemcpyHostToDevice, a));         // first
    must(cudaMemcpy2DAsync(rows + half, pitch, right, width, half, height, cudaMemcpyHostToDevice, b)); // second
    must(cudaDeviceSynchronize());
    must(cudaMemcpy2D(host, width, rows, pitch, width, height, cudaMemcpyDeviceToHost));
    return finish(host);
}
