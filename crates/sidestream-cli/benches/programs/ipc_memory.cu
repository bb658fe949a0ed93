// A process closes another's memory while its own download still reads it.
// expect: race UAF

#include "processes.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    auto child = [&](int from) {
        float *values = told<Shared>(from).open_memory(), *host = pinned_memory(0);
        cudaStream_t stream = new_stream();
        must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, stream)); // first
        if (repaired) must(cudaStreamSynchronize(stream));
        must(cudaIpcCloseMemHandle(values)); // second
        must(cudaStreamSynchronize(stream));
        return finish(host);
    };
    auto parent = [](int to) {
        Shared shared = {};
        float *values = device_memory();
        must(cudaMemset(values, 0x3f, BYTES));
        must(cudaDeviceSynchronize());
        must(cudaIpcGetMemHandle(&shared.memory, values));
        tell(to, shared);
    };
    return two_processes(parent, child);
}
