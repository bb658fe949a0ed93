// A tensor copy reads a box of a matrix. Another stream writes the rows above and below it, and the columns beside it;
// racy, also one word of a row inside.
// expect: error WAR
// flags: -lcuda

#include "bulk.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES), *sum = memory_of<unsigned>(4);
    const CUtensorMap map = map_of(matrix);
    cudaStream_t a = new_stream(), b = new_stream();
    const int x = 96, y = 32;
    unsigned *inside = matrix + (y + 5) * PITCH + x, *end = matrix + (y + BOX_HEIGHT) * PITCH;
    races(inside, 4);

    read_box<<<1, 1, 0, a>>>(sum, map, x, y); // first
    fill_bytes<<<8, THREADS, 0, b>>>(matrix, (y * PITCH + x) * 4, 1);
    fill_bytes<<<8, THREADS, 0, b>>>(inside - 100, (repaired ? 100 : 101) * 4, 2); // second
    fill_bytes<<<8, THREADS, 0, b>>>(inside + BOX_WIDTH, 100 * 4, 2);
    fill_bytes<<<8, THREADS, 0, b>>>(end, 4 * PITCH, 3);
    must(cudaGetLastError());
    return finish_bytes(matrix, MATRIX_BYTES);
}
