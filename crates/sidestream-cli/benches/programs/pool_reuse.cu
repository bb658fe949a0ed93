// Two streams take memory from one pool in turns. That an address freed in one stream comes back in the other is the
// driver's to order. Racy, memory is freed while a copy in the other stream reads it.
// expect: error UAF

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, {0}};
    cudaMemPool_t pool;
    unsigned long long keep = ~0ull;
    must(cudaMemPoolCreate(&pool, &properties));
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    float *out = device_memory();
    cudaStream_t streams[2] = {new_stream(), new_stream()};

    for (int step = 0; step < 20; step++) {
        cudaStream_t home = streams[step % 2], other = streams[1 - step % 2];
        float *values;
        must(cudaMallocFromPoolAsync(&values, BYTES, pool, home));
        must(cudaMemsetAsync(values, 0x3f, BYTES, home));
        if (step == 10) {
            order(other, home);
            must(cudaMemcpyAsync(out, values, BYTES, cudaMemcpyDeviceToDevice, other)); // first
            if (repaired) order(home, other);
        }
        must(cudaFreeAsync(values, home)); // second
    }
    return finish(out);
}
