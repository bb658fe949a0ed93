// Two kernels in two streams run at once and wait for each other by flags, changed atomically. They finish. What the
// flags order is not seen: racy, data pass between the kernels by them; repaired, only the flags.
// expect: race

#include "exact.cuh"

__global__ void meet(unsigned *flags, int own, uint8_t *values, bool has_data) {
    for (unsigned step = 1; step <= 10; step++) {
        if (has_data && own == step % 2) values[step] = step;
        __threadfence();
        atomicExch(flags + own, step);
        while (atomicCAS(flags + 1 - own, ~0u, ~0u) < step) {}
        __threadfence();
        if (has_data && own != step % 2) values[PAGE / 2 + step] = values[step];
    }
}

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *flags = memory_of<unsigned>(8);
    uint8_t *values = memory_of(PAGE);
    cudaStream_t streams[] = {new_stream(), new_stream()};

    for (int own = 0; own < 2; own++) meet<<<1, 1, 0, streams[own]>>>(flags, own, values, !repaired); // first second
    must(cudaGetLastError());
    return finish_bytes(flags, 8);
}
