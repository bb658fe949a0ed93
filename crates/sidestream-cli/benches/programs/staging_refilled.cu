// A pinned staging buffer is filled with the next batch while the upload of the last one still reads it.
// expect: error WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *staging = pinned_memory(1), *source = device_memory(), *target = device_memory();
    cudaStream_t up = new_stream(), down = new_stream();
    must(cudaMemsetAsync(source, 0x3f, BYTES, down));

    must(cudaMemcpyAsync(target, staging, BYTES, cudaMemcpyHostToDevice, up)); // first
    if (repaired) order(down, up);
    must(cudaMemcpyAsync(staging, source, BYTES, cudaMemcpyDeviceToHost, down)); // second
    must(cudaStreamSynchronize(down));
    return finish(target);
}
