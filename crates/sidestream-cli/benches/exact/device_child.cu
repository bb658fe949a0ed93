// A kernel launches another from the device, complete when its parent is. What either touches is not noted, so a missing
// wait for it is not seen; the program runs as it would.
// expect: unseen
// flags: -rdc=true -lcudadevrt

#include "exact.cuh"

static __global__ void parent(uint8_t *to, size_t bytes) {
    if (threadIdx.x == 0) fill_bytes<<<4, THREADS>>>(to, bytes, 1);
}

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE), *host = reinterpret_cast<uint8_t *>(pinned_memory(0));
    cudaStream_t a = new_stream(), b = new_stream();
    parent<<<1, THREADS, 0, a>>>(values, PAGE);
    must(cudaGetLastError());
    if (repaired) order(b, a);
    must(cudaMemcpyAsync(host, values, PAGE, cudaMemcpyDeviceToHost, b));
    must(cudaDeviceSynchronize());
    return finish_bytes(values, PAGE);
}
