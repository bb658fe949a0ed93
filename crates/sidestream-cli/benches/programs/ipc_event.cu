// A process opens memory and an event of another. The other's event says nothing of what this process itself has in
// flight: its download of the shared memory still has to wait for its own memset.
// expect: race RAW

#include "processes.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    auto child = [&](int from) {
        const Shared shared = told<Shared>(from);
        float *values = shared.open_memory(), *host = pinned_memory(0);
        cudaEvent_t written = shared.open_event();
        cudaStream_t a = new_stream(), b = new_stream();

        must(cudaMemsetAsync(values, 0x3f, BYTES, a)); // first
        must(cudaStreamWaitEvent(b, written, 0));
        if (repaired) order(b, a);
        must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, b)); // second
        must(cudaDeviceSynchronize());
        finish(host);
        must(cudaIpcCloseMemHandle(values));
        return 0;
    };
    auto parent = [](int to) {
        Shared shared;
        float *values = device_memory();
        cudaStream_t stream = new_stream();
        cudaEvent_t event = new_shared_event();
        must(cudaMemsetAsync(values, 0x3e, BYTES, stream));
        must(cudaEventRecord(event, stream));
        must(cudaStreamSynchronize(stream));
        must(cudaIpcGetMemHandle(&shared.memory, values));
        must(cudaIpcGetEventHandle(&shared.event, event));
        tell(to, shared);
    };
    return two_processes(parent, child);
}
