// A graph contains another twice, one after the other, beside a kernel node. Racy, that kernel writes one byte of the
// child's.
// expect: error WAW

#include "exact.cuh"

static cudaGraphNode_t add(cudaGraph_t graph, uint8_t *to, size_t bytes, int byte) {
    void *parameters[] = {&to, &bytes, &byte};
    cudaKernelNodeParams launch = {(void *)fill_bytes, 4, THREADS, 0, parameters, nullptr};
    cudaGraphNode_t node;
    must(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &launch)); // first second
    return node;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 3001;
    uint8_t *values = memory_of(PAGE);
    cudaGraph_t inner, outer;
    cudaGraphExec_t replay;
    cudaGraphNode_t children[2];
    races(values + bytes - 1, 1);
    must(cudaGraphCreate(&inner, 0));
    must(cudaGraphCreate(&outer, 0));
    add(inner, values, bytes, 1);                                                  // first second
    must(cudaGraphAddChildGraphNode(&children[0], outer, nullptr, 0, inner));      // first second
    must(cudaGraphAddChildGraphNode(&children[1], outer, &children[0], 1, inner)); // first second
    add(outer, values + (repaired ? bytes : bytes - 1), 100, 2);                   // first second
    must(cudaGraphInstantiate(&replay, outer));

    must(cudaGraphLaunch(replay, new_stream())); // first second
    return finish_bytes(values, PAGE);
}
