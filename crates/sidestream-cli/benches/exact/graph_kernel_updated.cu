// A kernel node of an instantiated graph gets another range. Racy, that overlaps what another stream reads, by one
// byte.
// expect: error WAR

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE), *to = values;
    auto *sum = memory_of<unsigned>(4);
    size_t bytes = 100;
    int byte = 1;
    void *parameters[] = {&to, &bytes, &byte};
    cudaKernelNodeParams launch = {(void *)fill_bytes, 1, THREADS, 0, parameters, nullptr};
    cudaStream_t a = new_stream(), b = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaGraphNode_t node;
    must(cudaGraphCreate(&graph, 0));
    must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch)); // second
    must(cudaGraphInstantiate(&replay, graph));
    must(cudaGraphLaunch(replay, a));
    races(values + 2000, 1);

    add_up<uint8_t><<<1, THREADS, 0, b>>>(sum, values + 2000, 1000); // first
    to = values + (repaired ? 1900 : 1901);
    must(cudaGraphExecKernelNodeSetParams(replay, node, &launch)); // second
    must(cudaGraphLaunch(replay, a));                              // second
    return finish_bytes(values, PAGE);
}
