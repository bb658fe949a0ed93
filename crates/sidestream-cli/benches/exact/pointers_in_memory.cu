// A kernel follows a linked list; that its nodes' data are written, no parameter shows. Racy, another stream reads one
// of them.
// expect: error RAW

#include "exact.cuh"

struct Node {
    Node *next;
    uint8_t *data;
    int bytes;
};

__global__ void walk(Node *node) {
    for (; node; node = node->next)
        for (int i = threadIdx.x; i < node->bytes; i += blockDim.x) node->data[i] = 1;
}

int main(int count, char **) {
    const bool repaired = count > 1;
    const int nodes = 5, bytes = 1001;
    auto *list = memory_of<Node>(nodes * sizeof(Node));
    uint8_t *data[nodes];
    for (int i = 0; i < nodes; i++) {
        data[i] = memory_of(PAGE);
        const Node node = {i + 1 < nodes ? list + i + 1 : nullptr, data[i], bytes};
        must(cudaMemcpy(list + i, &node, sizeof node, cudaMemcpyHostToDevice));
    }
    must(cudaDeviceSynchronize());
    auto *sum = memory_of<unsigned>(4);
    cudaStream_t a = new_stream(), b = new_stream();
    races(data[3] + bytes - 1, 1);

    walk<<<1, THREADS, 0, a>>>(list);                                                         // first
    add_up<uint8_t><<<1, THREADS, 0, b>>>(sum, data[3] + (repaired ? bytes : bytes - 1), 64); // second
    must(cudaGetLastError());
    return finish_bytes(data[3], PAGE);
}
