// One map in the parameters is encoded anew between two launches, for another matrix: each launch reads by its own.
// Another stream writes the first matrix after a wait for the first launch; racy, to the second.
// expect: error WAR
// flags: -lcuda

#include "bulk.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    unsigned *matrices[] = {memory_of<unsigned>(MATRIX_BYTES), memory_of<unsigned>(MATRIX_BYTES)};
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    CUtensorMap map = map_of(matrices[0]);
    races(matrices[1], 4);

    read_box<<<1, 1, 0, a>>>(sum, map, 0, 0);
    order(b, a);
    map = map_of(matrices[1]);
    read_box<<<1, 1, 0, a>>>(sum, map, 0, 0);                           // first
    fill_bytes<<<8, THREADS, 0, b>>>(matrices[repaired ? 0 : 1], 4, 1); // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
