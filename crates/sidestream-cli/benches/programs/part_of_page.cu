// An upload reads 512 bytes within a page. Racy, the host writes to these bytes; repaired, to those beside them.
// expect: error HOST_WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const int each = 128;
    float *page = pinned_memory(1, 8 * each), *values = device_memory(each * sizeof(float));
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyAsync(values, page + 2 * each, each * sizeof(float), cudaMemcpyHostToDevice, stream)); // first
    float *beside = page + (repaired ? 3 : 2) * each;
    for (int i = 0; i < each; i++) beside[i] = 2; // second
    must(cudaStreamSynchronize(stream));          // second
    printf("%g\n", beside[each - 1]);
    return finish(values, each);
}
