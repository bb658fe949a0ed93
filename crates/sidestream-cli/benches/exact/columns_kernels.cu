// Two streams write the left and the right columns of one matrix, whose ranges interleave. Racy, they share a column.
// expect: error WAW

#include "exact.cuh"

constexpr int WIDTH = 1000, HEIGHT = 500;

__global__ void columns(float *matrix, int begin, int end, float value) {
    for (int column = begin + threadIdx.x; column < end; column += blockDim.x)
        matrix[blockIdx.x * WIDTH + column] = value;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *matrix = device_memory(WIDTH * HEIGHT * sizeof(float));
    cudaStream_t a = new_stream(), b = new_stream();
    const int middle = 501;

    columns<<<HEIGHT, THREADS, 0, a>>>(matrix, 0, middle, 1);                             // first
    columns<<<HEIGHT, THREADS, 0, b>>>(matrix, repaired ? middle : middle - 1, WIDTH, 2); // second
    must(cudaGetLastError());
    return finish(matrix, WIDTH * HEIGHT);
}
