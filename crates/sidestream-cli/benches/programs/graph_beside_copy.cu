// The next input is uploaded while the replay of a graph still reads the last.
// expect: error WAR

#include "program.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // first
    must(cudaStreamEndCapture(compute, &graph));
    must(cudaGraphInstantiate(&replay, graph));

    for (int step = 0; step < 2; step++) {
        must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // second
        order(compute, copies);
        must(cudaGraphLaunch(replay, compute)); // first
        if (repaired) order(copies, compute);
    }
    return finish(out);
}
