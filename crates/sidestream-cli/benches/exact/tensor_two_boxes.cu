// Tensor copies of two streams write two boxes of one matrix, side by side: their ranges interleave. Racy, they share half
// of each row.
// expect: warning RAW
// repaired: warns
// flags: -lcuda

#include "bulk.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES);
    const CUtensorMap map = map_of(matrix);
    cudaStream_t a = new_stream(), b = new_stream();
    races(matrix, TENSOR_BYTES);

    write_box<<<1, THREADS, 0, a>>>(map, 64, 16);                   // first
    write_box<<<1, THREADS, 0, b>>>(map, repaired ? 128 : 96, 16); // second
    must(cudaGetLastError());
    return finish_bytes(matrix, MATRIX_BYTES);
}
