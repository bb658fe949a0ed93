// Streams that only read a buffer need no order among them; the upload of the next one has to wait for both.
// expect: error WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out[2] = {device_memory(), device_memory()};
    cudaStream_t copies = new_stream(), readers[2] = {new_stream(), new_stream()};

    for (int step = 0; step < 2; step++) {
        must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // second
        for (int i = 0; i < 2; i++) {
            order(readers[i], copies);
            scale<<<BLOCKS, THREADS, 0, readers[i]>>>(out[i], in, 2 + i, COUNT); // first
            must(cudaGetLastError());
        }
        order(copies, readers[0]);
        if (repaired) order(copies, readers[1]);
    }
    must(cudaDeviceSynchronize());
    return finish(out[1]);
}
