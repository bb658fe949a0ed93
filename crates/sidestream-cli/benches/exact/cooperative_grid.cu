// A cooperative kernel writes, waits for its whole grid and reads what other blocks wrote. Racy, another stream writes
// one byte of it.
// expect: error WAW|RAW|WAR

#include "exact.cuh"
#include <cooperative_groups.h>

__global__ void two_passes(unsigned *sum, uint8_t *values, int count) {
    auto grid = cooperative_groups::this_grid();
    const int all = grid.size(), own = grid.thread_rank();
    for (int i = own; i < count; i += all) values[i] = 1;
    grid.sync();
    unsigned read = 0;
    for (int i = own; i < count; i += all) read += values[count - 1 - i];
    atomicAdd(sum, read);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    int bytes = 54321;
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + bytes - 1, 1);

    void *parameters[] = {&sum, &values, &bytes};
    must(cudaLaunchCooperativeKernel((void *)two_passes, 16, THREADS, parameters, 0, a)); // first
    fill_bytes<<<1, THREADS, 0, b>>>(values + (repaired ? bytes : bytes - 1), 100, 2);    // second
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
