// Two kernel nodes of a graph have no order between them. Racy, they write one byte in common.
// expect: error WAW

#include "exact.cuh"

static cudaGraphNode_t add(cudaGraph_t graph, uint8_t *to, size_t count, int byte) {
    void *parameters[] = {&to, &count, &byte};
    cudaKernelNodeParams launch = {(void *)fill_bytes, 8, THREADS, 0, parameters, nullptr};
    cudaGraphNode_t node;
    must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch)); // first second
    return node;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t half = PAGE / 2;
    uint8_t *values = memory_of(PAGE);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    races(values + half - 1, 1);
    must(cudaGraphCreate(&graph, 0));
    const size_t from = repaired ? half : half - 1;
    add(graph, values, half, 1);               // first second
    add(graph, values + from, PAGE - from, 2); // first second
    must(cudaGraphInstantiate(&replay, graph));
    cudaStream_t stream = new_stream();
    for (int step = 0; step < 2; step++) must(cudaGraphLaunch(replay, stream)); // first second
    return finish_bytes(values, PAGE);
}
