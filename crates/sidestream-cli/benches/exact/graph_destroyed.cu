// A graph is destroyed once it is instantiated, and another is built, whose nodes may get the same handles: each
// executable keeps its own accesses. Racy, the two share a byte.
// expect: error WAW

#include "exact.cuh"

static cudaGraphExec_t filling(uint8_t *to, size_t bytes, int byte) {
    void *parameters[] = {&to, &bytes, &byte};
    cudaKernelNodeParams launch = {(void *)fill_bytes, 4, THREADS, 0, parameters, nullptr};
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaGraphNode_t node;
    must(cudaGraphCreate(&graph, 0));
    must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch)); // first second
    must(cudaGraphInstantiate(&replay, graph));
    must(cudaGraphDestroy(graph));
    return replay;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 2001;
    uint8_t *values = memory_of(PAGE);
    races(values + bytes - 1, 1);
    cudaGraphExec_t one = filling(values, bytes, 1);                                  // first
    cudaGraphExec_t two = filling(values + (repaired ? bytes : bytes - 1), bytes, 2); // second

    must(cudaGraphLaunch(one, new_stream())); // first
    must(cudaGraphLaunch(two, new_stream())); // second
    return finish_bytes(values, PAGE);
}
