// Tensor copies write boxes that the tensor's right and lower edges cut off: what lies beyond is not written. Another
// stream writes there; racy, it begins at the last column of the tensor.
// expect: warning WAR
// repaired: warns
// flags: -lcuda

#include "bulk.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES);
    const CUtensorMap map = map_of(matrix);
    cudaStream_t a = new_stream(), b = new_stream();
    const int x = WIDTH - 16, y = HEIGHT - 10;
    unsigned *edge = matrix + (y + 3) * PITCH + WIDTH;
    races(matrix, TENSOR_BYTES);

    write_box<<<1, THREADS, 0, a>>>(map, x, y); // first
    fill_bytes<<<8, THREADS, 0, b>>>(repaired ? edge : edge - 1, (PITCH - WIDTH) * 4, 2); // second
    fill_bytes<<<8, THREADS, 0, b>>>(matrix + HEIGHT * PITCH, (ROWS - HEIGHT) * PITCH * 4, 2);
    must(cudaGetLastError());
    return finish_bytes(matrix, MATRIX_BYTES);
}
