// Two streams add to one box of a matrix by tensor reductions, each of them an atomic of the GPU's scope. Racy, a third
// stream stores plainly inside; repaired, beside it.
// expect: warning RAW|WAR
// repaired: warns
// flags: -lcuda

#include "bulk.cuh"

__global__ void add_box(const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ alignas(128) unsigned box[BOX_WIDTH * BOX_HEIGHT];
    for (int i = threadIdx.x; i < BOX_WIDTH * BOX_HEIGHT; i += blockDim.x) box[i] = 1;
    publish();
    if (threadIdx.x > 0) return;
    tensor_add(&map, box, x, y);
    wait_for_stores();
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES);
    const CUtensorMap map = map_of(matrix);
    cudaStream_t a = new_stream(), b = new_stream(), c = new_stream();
    const int x = 64, y = 16;
    unsigned *inside = matrix + (y + 7) * PITCH + x + BOX_WIDTH - 1;
    races(matrix, TENSOR_BYTES);

    add_box<<<1, THREADS, 0, a>>>(map, x, y);                         // first
    add_box<<<1, THREADS, 0, b>>>(map, x, y);                         // first second
    fill_bytes<<<1, 4, 0, c>>>(repaired ? inside + 1 : inside, 4, 1); // second
    must(cudaGetLastError());
    return finish_bytes(matrix, MATRIX_BYTES);
}
