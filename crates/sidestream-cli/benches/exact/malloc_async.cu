// Two blocks of cudaMallocAsync lie side by side; each stream writes its own. Racy, one writes the other's last byte,
// too.
// expect: error WAW

#include "exact.cuh"

int main(int count, char **) {
    const bool repaired = count > 1;
    const size_t bytes = 3000;
    cudaStream_t a = new_stream(), b = new_stream();
    uint8_t *mine, *other;
    must(cudaMallocAsync(&mine, bytes, a));
    must(cudaMallocAsync(&other, bytes, a));
    order(b, a);
    races(other + bytes - 1, 1);

    fill_bytes<<<8, THREADS, 0, b>>>(other, bytes, 2); // first
    fill_bytes<<<8, THREADS, 0, a>>>(mine, bytes, 1);
    fill_bytes<<<1, 1, 0, a>>>(repaired ? mine + bytes - 1 : other + bytes - 1, 1, 3); // second
    must(cudaGetLastError());
    finish_bytes(mine, bytes);
    return finish_bytes(other, bytes);
}
