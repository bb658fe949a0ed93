// A thread spins until a host function has raised a flag. The calls show neither the flag nor that it is missing; the
// wait for it must not be taken for a race.
// expect: unseen
// repaired: warns

#include "program.cuh"
#include <atomic>

static void raise(void *flag) { static_cast<std::atomic<bool> *>(flag)->store(true); }

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    std::atomic<bool> uploaded{false};

    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies));
    must(cudaLaunchHostFunc(copies, raise, &uploaded));
    while (repaired && !uploaded.load()) {}
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT);
    must(cudaGetLastError());
    return finish(out);
}
