// A dependent kernel writes before it waits for its predecessor: repaired, where no one else does; racy, what the
// predecessor reads. What it writes after the wait is ordered.
// expect: error WAR

#include "programmatic.cuh"

__global__ void read(unsigned *sum, const uint8_t *values, int count) {
    cudaTriggerProgrammaticLaunchCompletion();
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(sum, values[i]);
}

__global__ void overwrite(uint8_t *values, int early) {
    values[early + threadIdx.x] = 2;
    cudaGridDependencySynchronize();
    values[threadIdx.x] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    const int end = 5000;
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t stream = new_stream();
    races(values + end - 1, 1);

    read<<<1, THREADS, 0, stream>>>(sum, values, end);                 // first
    launch_early(stream, overwrite, values, repaired ? end : end - 1); // second
    return finish_bytes(values, PAGE);
}
