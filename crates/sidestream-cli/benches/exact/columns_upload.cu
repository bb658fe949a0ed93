// A pitched upload fills the left columns of a matrix; a kernel reads the right ones. Racy, it reads one byte more a
// row.
// expect: error RAW

#include "exact.cuh"

__global__ void add_columns(unsigned *sum, const uint8_t *matrix, size_t pitch, int begin, int end) {
    for (int i = begin + threadIdx.x; i < end; i += blockDim.x) atomicAdd(sum, matrix[blockIdx.x * pitch + i]);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int width = 1000, height = 200, left = 333;
    void *host = pinned_memory(1);
    uint8_t *matrix;
    size_t pitch;
    must(cudaMallocPitch(&matrix, &pitch, width, height));
    must(cudaMemset2D(matrix, pitch, 1, width, height));
    must(cudaDeviceSynchronize());
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t copies = new_stream(), compute = new_stream();

    must(cudaMemcpy2DAsync(matrix, pitch, host, left, left, height, cudaMemcpyHostToDevice, copies));    // first
    add_columns<<<height, THREADS, 0, compute>>>(sum, matrix, pitch, repaired ? left : left - 1, width); // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
