// One stream forks into three, which write parts of a page that meet at odd bytes, and joins them again.

#include "waits.cuh"

int main() {
    const size_t meet[] = {0, 10001, 33333, PAGE};
    uint8_t *page = memory_of(PAGE);
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t outer = new_stream(), inner[] = {new_stream(), new_stream(), new_stream()};

    for (int step = 0; step < 3; step++) {
        cudaEvent_t begin = recorded(outer);
        for (int i = 0; i < 3; i++) {
            WAIT(cudaStreamWaitEvent(inner[i], begin, 0));
            fill_bytes<<<8, THREADS, 0, inner[i]>>>(page + meet[i], meet[i + 1] - meet[i], step + i);
            cudaEvent_t end = recorded(inner[i]);
            WAIT(cudaStreamWaitEvent(outer, end, 0));
        }
        add_up<uint8_t><<<8, THREADS, 0, outer>>>(sum, page, PAGE);
    }
    return finish_bytes(sum, 4);
}
