// Two executables of one graph replay in two streams, one of them with another range. Racy, the ranges share a byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE), *to = values;
    size_t bytes = 3001;
    int byte = 1;
    void *parameters[] = {&to, &bytes, &byte};
    cudaKernelNodeParams launch = {(void *)fill_bytes, 4, THREADS, 0, parameters, nullptr};
    cudaGraph_t graph;
    cudaGraphExec_t one, two;
    cudaGraphNode_t node;
    must(cudaGraphCreate(&graph, 0));
    must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch)); // first second
    must(cudaGraphInstantiate(&one, graph));
    must(cudaGraphInstantiate(&two, graph));
    to = values + (repaired ? 3001 : 3000);
    must(cudaGraphExecKernelNodeSetParams(two, node, &launch)); // second
    races(values + 3000, 1);

    must(cudaGraphLaunch(one, new_stream())); // first
    must(cudaGraphLaunch(two, new_stream())); // second
    return finish_bytes(values, PAGE);
}
