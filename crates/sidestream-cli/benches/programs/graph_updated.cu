// A node of an instantiated graph gets another buffer, which another stream is still filling.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *out = device_memory();
    float *in[2] = {device_memory(), device_memory()};
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaGraphNode_t node;
    int all = COUNT;
    must(cudaGraphCreate(&graph, 0));
    must(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, out, in[0], BYTES, cudaMemcpyDeviceToDevice));
    must(cudaGraphInstantiate(&replay, graph));
    must(cudaGraphLaunch(replay, compute));

    must(cudaMemcpyAsync(in[1], host, all * sizeof(float), cudaMemcpyHostToDevice, copies)); // first
    must(cudaGraphExecMemcpyNodeSetParams1D(replay, node, out, in[1], BYTES, cudaMemcpyDeviceToDevice)); // second
    if (repaired) order(compute, copies);
    must(cudaGraphLaunch(replay, compute)); // second
    return finish(out);
}
