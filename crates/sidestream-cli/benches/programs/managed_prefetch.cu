// A prefetch of managed memory conflicts with nothing, also beside a kernel. Racy, a memset does not wait for a copy.
// expect: error RAW|WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    int concurrent;
    must(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    needs(concurrent != 0, "concurrent managed access");
    float *values, *out = device_memory();
    must(cudaMallocManaged(&values, BYTES));
    cudaStream_t a = new_stream(), b = new_stream(), moving = new_stream();

    increase<<<BLOCKS, THREADS, 0, a>>>(values, 1, COUNT);
    must(cudaMemPrefetchAsync(values, BYTES, {cudaMemLocationTypeDevice, {0}}, 0, moving));
    must(cudaMemsetAsync(values, 0x3f, BYTES, a)); // first
    if (repaired) order(b, a);
    must(cudaMemcpyAsync(out, values, BYTES, cudaMemcpyDefault, b)); // second
    return finish(out);
}
