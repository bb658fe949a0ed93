// NVIDIA/Megatron-LM #5715: each step writes tokens and blocks into one pinned buffer and uploads it. The next step writes
// while that upload still reads.
// expect: error HOST_WAR

#include "program.cuh"

struct Bookkeeping {
    float tokens[FEW / 2], blocks[FEW / 2];
};

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *on_host = reinterpret_cast<Bookkeeping *>(pinned_memory(0, FEW));
    float *on_device = device_memory(FEW_BYTES), *sums = device_memory(FEW_BYTES);
    cudaStream_t stream = new_stream();

    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < FEW / 2; i++) {
            on_host->tokens[i] = step;    // second
            on_host->blocks[i] = i / 128; // second
        }
        occupy(stream);
        must(cudaMemcpyAsync(on_device, on_host, FEW_BYTES, cudaMemcpyHostToDevice, stream)); // first
        if (repaired) must(cudaStreamSynchronize(stream));
        scale<<<FEW / THREADS, THREADS, 0, stream>>>(sums, on_device, 2, FEW);
    }
    return finish(sums, FEW);
}
