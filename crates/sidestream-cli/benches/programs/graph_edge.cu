// A graph that is built by hand lacks the edge between the node that writes a buffer and the one that reads it.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values = device_memory();
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaGraphNode_t fill, download;
    cudaMemsetParams to_fill = {};
    to_fill.dst = values;
    to_fill.elementSize = 4;
    to_fill.value = 0x3f3f3f3f;
    to_fill.width = COUNT;
    to_fill.height = 1;
    must(cudaGraphCreate(&graph, 0));
    must(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &to_fill)); // first
    const size_t edges = repaired ? 1 : 0;
    must(cudaGraphAddMemcpyNode1D(&download, graph, &fill, edges, host, values, BYTES, cudaMemcpyDefault)); // second
    must(cudaGraphInstantiate(&replay, graph));

    must(cudaGraphLaunch(replay, stream)); // first second
    must(cudaStreamSynchronize(stream));
    return finish(host);
}
