// A dependent kernel reads bytes before it waits for its predecessor, others after. Racy, the last that it reads before
// is one that the predecessor writes.
// expect: error RAW

#include "programmatic.cuh"

__global__ void consume(unsigned *sum, const uint8_t *values, int early, int late) {
    unsigned own = values[early + threadIdx.x];
    cudaGridDependencySynchronize();
    atomicAdd(sum, own + values[late + threadIdx.x]);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    const int end = 5000, from = end - (repaired ? 0 : 1);
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t stream = new_stream();
    races(values + end - 1, 1);

    produce<<<8, THREADS, 0, stream>>>(values, end);     // first
    launch_early(stream, consume, sum, values, from, 0); // second
    return finish_bytes(sum, repaired ? 4 : 0);
}
