// A tensor copy writes a box of a matrix. Another stream reads rows and columns around it; racy, also a word inside.
// expect: warning RAW
// repaired: warns
// flags: -lcuda

#include "bulk.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES), *sum = memory_of<unsigned>(4);
    const CUtensorMap map = map_of(matrix);
    cudaStream_t a = new_stream(), b = new_stream();
    const int x = 128, y = 48;
    const unsigned *last = matrix + (y + BOX_HEIGHT - 1) * PITCH + x + BOX_WIDTH - 1;
    races(matrix, TENSOR_BYTES);

    write_box<<<1, THREADS, 0, a>>>(map, x, y); // first
    add_up<<<8, THREADS, 0, b>>>(sum, matrix, y * PITCH + x);                     // second
    add_up<<<8, THREADS, 0, b>>>(sum, repaired ? last + 1 : last, 2 * PITCH); // second
    must(cudaGetLastError());
    return finish_bytes(matrix, MATRIX_BYTES);
}
