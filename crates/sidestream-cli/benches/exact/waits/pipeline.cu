// Uploads, kernels and downloads in three streams, over two sets of buffers.

#include "waits.cuh"

int main() {
    float *host = pinned_memory(1), *results = pinned_memory(0);
    float *in[] = {device_memory(), device_memory()}, *out[] = {device_memory(), device_memory()};
    cudaStream_t up = new_stream(), compute = new_stream(), down = new_stream();
    cudaEvent_t computed[2] = {new_event(), new_event()}, downloaded[2] = {new_event(), new_event()};

    for (int step = 0; step < 4; step++) {
        const int i = step % 2;
        WAIT(cudaStreamWaitEvent(up, computed[i], 0));
        must(cudaMemcpyAsync(in[i], host, BYTES, cudaMemcpyHostToDevice, up));
        cudaEvent_t uploaded = recorded(up);
        WAIT(cudaStreamWaitEvent(compute, uploaded, 0));
        WAIT(cudaStreamWaitEvent(compute, downloaded[i], 0));
        scale<<<BLOCKS, THREADS, 0, compute>>>(out[i], in[i], 2, COUNT);
        must(cudaEventRecord(computed[i], compute));
        WAIT(cudaStreamWaitEvent(down, computed[i], 0));
        must(cudaMemcpyAsync(results, out[i], BYTES, cudaMemcpyDeviceToHost, down));
        must(cudaEventRecord(downloaded[i], down));
    }
    return finish(results);
}
