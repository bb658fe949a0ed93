// One process writes memory that another reads. Without the wait for its event that is a race, which a check of each
// process by itself does not see; with it, both must stay silent.
// expect: unseen

#include "processes.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    auto child = [&](int from) {
        const Shared shared = told<Shared>(from);
        float *values = shared.open_memory(), *host = pinned_memory(0);
        cudaEvent_t written = shared.open_event();
        cudaStream_t stream = new_stream();
        if (repaired) must(cudaStreamWaitEvent(stream, written, 0));
        must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, stream)); // second
        must(cudaStreamSynchronize(stream));
        finish(host);
        must(cudaIpcCloseMemHandle(values));
        return 0;
    };
    auto parent = [](int to) {
        Shared shared;
        float *values = device_memory();
        cudaStream_t stream = new_stream();
        cudaEvent_t event = new_shared_event();
        must(cudaIpcGetMemHandle(&shared.memory, values));
        must(cudaIpcGetEventHandle(&shared.event, event));
        must(cudaMemsetAsync(values, 0x3f, BYTES, stream)); // first
        must(cudaEventRecord(event, stream));
        tell(to, shared);
    };
    return two_processes(parent, child);
}
