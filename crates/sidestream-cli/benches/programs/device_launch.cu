// A kernel launches a graph from the device (fire and forget): complete when the outer graph is. The calls do not show
// what the inner graph writes, so a missing wait for it cannot be seen.
// expect: unseen
// flags: -rdc=true -lcudadevrt

#include "program.cuh"

__global__ void launch(cudaGraphExec_t inner) { cudaGraphLaunch(inner, cudaStreamGraphFireAndForget); }

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *values = device_memory();
    cudaStream_t stream = new_stream(), copies = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t inner, outer;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    increase<<<BLOCKS, THREADS, 0, stream>>>(values, 1, COUNT);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&inner, graph, cudaGraphInstantiateFlagDeviceLaunch));
    must(cudaGraphUpload(inner, stream));
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch<<<1, 1, 0, stream>>>(inner);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&outer, graph));

    must(cudaGraphLaunch(outer, stream));
    if (repaired) order(copies, stream);
    must(cudaMemcpyAsync(host, values, BYTES, cudaMemcpyDeviceToHost, copies));
    must(cudaDeviceSynchronize());
    return finish(host);
}
