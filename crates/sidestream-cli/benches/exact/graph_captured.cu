// A capture forks into a second stream, and both branches write parts of one page. Racy, they overlap by one byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t half = PAGE / 2;
    uint8_t *values = memory_of(PAGE);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    races(values + half - 1, 1);
    must(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    order(b, a);
    fill_bytes<<<8, THREADS, 0, a>>>(values, half, 1); // first second
    const size_t from = repaired ? half : half - 1;
    fill_bytes<<<8, THREADS, 0, b>>>(values + from, PAGE - from, 2); // first second
    order(a, b);
    must(cudaStreamEndCapture(a, &graph));
    must(cudaGraphInstantiate(&replay, graph));

    for (int step = 0; step < 2; step++) must(cudaGraphLaunch(replay, a)); // first second
    return finish_bytes(values, PAGE);
}
