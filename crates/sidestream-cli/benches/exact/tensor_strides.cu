// A tensor map that takes every second row: the rows between are not read, and another stream writes one of them. Racy,
// it writes the first byte of a row that is read.
// expect: error WAR
// flags: -lcuda

#include "bulk.cuh"

__global__ void read_rows(unsigned *sum, const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ alignas(128) unsigned box[BOX_WIDTH * BOX_HEIGHT];
    __shared__ uint64_t barrier;
    expect_bytes(&barrier, BOX_BYTES / 2);
    tensor_load(box, &map, x, y, &barrier);
    wait_for_bytes(&barrier);
    *sum = box[0];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES), *sum = memory_of<unsigned>(4);
    const CUtensorMap map = map_of(matrix, 2);
    cudaStream_t a = new_stream(), b = new_stream();
    const int x = 64, y = 20;
    unsigned *between = matrix + (y + 3) * PITCH + x, *read = matrix + (y + 4) * PITCH + x;
    races(read, 1);

    read_rows<<<1, 1, 0, a>>>(sum, map, x, y); // first
    fill_bytes<<<8, THREADS, 0, b>>>(between, BOX_WIDTH * 4, 1);
    fill_bytes<<<1, 1, 0, b>>>(repaired ? between : read, 1, 1); // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
