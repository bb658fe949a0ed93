// An executable graph is updated as a whole from another capture (cudaGraphExecUpdate), with other ranges. Racy, the
// last launch writes a byte that another stream reads.
// expect: error WAR

#include "exact.cuh"

static cudaGraph_t captured(cudaStream_t stream, uint8_t *to, size_t bytes) {
    cudaGraph_t graph;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fill_bytes<<<4, THREADS, 0, stream>>>(to, bytes, 1); // second
    must(cudaStreamEndCapture(stream, &graph));
    return graph;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *values = memory_of(PAGE), *read = values + 9001;
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaGraphExec_t replay;
    cudaGraphExecUpdateResultInfo updated;
    must(cudaGraphInstantiate(&replay, captured(a, values, 100)));
    must(cudaGraphLaunch(replay, a));
    races(read, 1);

    add_up<uint8_t><<<4, THREADS, 0, b>>>(sum, read, 100);           // first
    cudaGraph_t other = captured(a, values, repaired ? 9001 : 9002); // second
    must(cudaGraphExecUpdate(replay, other, &updated));              // second
    must(cudaGraphDestroy(other));
    must(cudaGraphLaunch(replay, a)); // second
    return finish_bytes(values, PAGE);
}
