// The second replay of a graph writes bytes beside those that a kernel in another stream reads. Racy, the kernel reads
// one more.
// expect: error RAW|WAR

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE), *end = values + 1001;
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    must(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    fill_bytes<<<1, THREADS, 0, a>>>(values, 501, 1);
    fill_bytes<<<1, THREADS, 0, a>>>(values + 501, 500, 2); // first second
    must(cudaStreamEndCapture(a, &graph));
    must(cudaGraphInstantiate(&replay, graph));
    races(end - 1, 1);

    must(cudaGraphLaunch(replay, a)); // first
    order(b, a);
    must(cudaGraphLaunch(replay, a));                                          // first second
    add_up<uint8_t><<<1, THREADS, 0, b>>>(sum, repaired ? end : end - 1, 100); // first second
    must(cudaGetLastError());
    return finish_bytes(values, PAGE);
}
