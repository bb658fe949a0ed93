// Loads by the read-only path (`ld.global.nc`) of 16 bytes. Racy, they reach the first byte that another stream writes.
// expect: error WAR

#include "exact.cuh"

__global__ void through(unsigned *__restrict__ sum, const uint4 *__restrict__ from, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint4 value = __ldg(from + i);
    atomicAdd(sum, value.x + value.y + value.z + value.w);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int vectors = 1001;
    uint8_t *values = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(values + 16 * (vectors - 1), 1);

    through<<<8, THREADS, 0, a>>>(sum, reinterpret_cast<uint4 *>(values), repaired ? vectors - 1 : vectors); // first
    fill_bytes<<<8, THREADS, 0, b>>>(values + 16 * (vectors - 1), 1, 1);                                     // second
    return finish_bytes(values, PAGE);
}
