// A capture forks into a second stream; inside the graph, the kernel does not wait for the fork's upload.
// expect: error RAW

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t compute = new_stream(), copies = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    order(copies, compute);
    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    order(compute, copies);
    must(cudaStreamEndCapture(compute, &graph));
    must(cudaGraphInstantiate(&replay, graph));
    must(cudaGraphLaunch(replay, compute)); // first second
    return finish(out);
}
