// Two graphs in two streams share a buffer: one writes it, the other reads it.
// expect: error RAW

#include "program.cuh"

template <class Work> static cudaGraphExec_t captured(cudaStream_t stream, Work work) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&replay, graph));
    must(cudaGraphDestroy(graph));
    return replay;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *shared = device_memory();
    cudaStream_t a = new_stream(), b = new_stream();
    auto clear = captured(a, [&] { must(cudaMemsetAsync(shared, 0x3f, BYTES, a)); }); // first
    auto download = captured(b, [&] {
        must(cudaMemcpyAsync(host, shared, BYTES, cudaMemcpyDeviceToHost, b)); // second
    });

    must(cudaGraphLaunch(clear, a)); // first
    if (repaired) order(b, a);
    must(cudaGraphLaunch(download, b)); // second
    must(cudaDeviceSynchronize());
    return finish(host);
}
