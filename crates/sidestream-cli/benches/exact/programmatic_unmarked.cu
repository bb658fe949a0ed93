// A kernel that does not wait for its predecessor, beside the same kernel without the attribute, which is ordered.
// expect: error RAW

#include "programmatic.cuh"

__global__ void consume(unsigned *sum, const uint8_t *values) { atomicAdd(sum, values[threadIdx.x]); }

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t stream = new_stream();
    races(values, THREADS);

    produce<<<8, THREADS, 0, stream>>>(values, PAGE); // first
    if (repaired)
        consume<<<1, THREADS, 0, stream>>>(sum, values);
    else
        launch_early(stream, consume, sum, values); // second
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
