// Two streams write disjoint halves of one 64 KiB page. Racy, they overlap by one byte.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    uint8_t *page = memory_of(PAGE), *middle = page + PAGE / 2;
    cudaStream_t a = new_stream(), b = new_stream();
    races(middle, 1);

    for (int step = 0; step < 3; step++) {
        fill_bytes<<<8, THREADS, 0, a>>>(page, PAGE / 2 + !repaired, 1); // first second
        fill_bytes<<<8, THREADS, 0, b>>>(middle, PAGE / 2, 2);           // first second
    }
    return finish_bytes(page, PAGE);
}
