// A graph records an event that another stream waits for: repaired after the node that writes, racy before it.
// An event that a graph records counts as recorded at the graph's end, so this is not seen.
// expect: unseen

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values = device_memory();
    cudaStream_t compute = new_stream(), copies = new_stream();
    cudaEvent_t written = new_event();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    if (!repaired) must(cudaEventRecordWithFlags(written, compute, cudaEventRecordExternal));
    must(cudaMemsetAsync(values, 0x3f, BYTES, compute)); // first
    if (repaired) must(cudaEventRecordWithFlags(written, compute, cudaEventRecordExternal));
    must(cudaStreamEndCapture(compute, &graph));
    must(cudaGraphInstantiate(&replay, graph));

    must(cudaGraphLaunch(replay, compute)); // first
    must(cudaStreamWaitEvent(copies, written, 0));
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, copies)); // second
    must(cudaDeviceSynchronize());
    return finish(host);
}
