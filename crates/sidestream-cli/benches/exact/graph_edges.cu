// Nodes of a graph write the same bytes in the order of its edges. Racy, one of three edges is missing.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *to = memory_of(PAGE);
    size_t all = PAGE;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaGraphNode_t nodes[4];
    must(cudaGraphCreate(&graph, 0));
    for (int i = 0; i < 4; i++) {
        void *parameters[] = {&to, &all, &i};
        cudaKernelNodeParams launch = {(void *)fill_bytes, 8, THREADS, 0, parameters, nullptr};
        const int edges = i > 0 && (repaired || i != 2);
        must(cudaGraphAddKernelNode(&nodes[i], graph, nodes + i - edges, edges, &launch)); // first second
    }
    must(cudaGraphInstantiate(&replay, graph));
    races(to, PAGE);
    must(cudaGraphLaunch(replay, new_stream())); // first second
    return finish_bytes(to, PAGE);
}
