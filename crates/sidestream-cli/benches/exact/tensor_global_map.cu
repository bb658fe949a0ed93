// The tensor map lies in device memory, where an upload put it. Racy, a kernel writes a word of the box that is read.
// expect: error WAR
// flags: -lcuda

#include "bulk.cuh"

__global__ void read_by(unsigned *sum, const CUtensorMap *map, int x, int y) {
    __shared__ alignas(128) unsigned box[BOX_WIDTH * BOX_HEIGHT];
    __shared__ uint64_t barrier;
    expect_bytes(&barrier, BOX_BYTES);
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    tensor_load(box, map, x, y, &barrier);
    wait_for_bytes(&barrier);
    *sum = box[0];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    needs_hopper();
    auto *matrix = memory_of<unsigned>(MATRIX_BYTES), *sum = memory_of<unsigned>(4);
    const CUtensorMap map = map_of(matrix);
    auto *on_device = memory_of<CUtensorMap>(sizeof map);
    must(cudaMemcpy(on_device, &map, sizeof map, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
    cudaStream_t a = new_stream(), b = new_stream();
    unsigned *word = matrix + (32 + 15) * PITCH + 96 + 63;
    races(word, 4);

    read_by<<<1, 1, 0, a>>>(sum, on_device, 96, 32);                      // first
    fill_bytes<<<8, THREADS, 0, b>>>(repaired ? word + 1 : word, 400, 1); // second
    must(cudaGetLastError());
    return finish_bytes(sum, 4);
}
