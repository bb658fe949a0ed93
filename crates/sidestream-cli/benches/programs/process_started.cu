// The program that uses CUDA is started by another, which does not.
// expect: error RAW

#include "program.cuh"
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 3) {
        int status;
        const char *mode = count > 1 ? "repaired" : "racy";
        if (fork() == 0) execl(arguments[0], arguments[0], mode, "started", nullptr);
        wait(&status);
        return WEXITSTATUS(status);
    }
    const bool repaired = strcmp(arguments[1], "repaired") == 0;
    float *host = pinned_memory(1), *in = device_memory(), *out = device_memory();
    cudaStream_t copies = new_stream(), compute = new_stream();
    must(cudaMemcpyAsync(in, host, BYTES, cudaMemcpyHostToDevice, copies)); // first
    if (repaired) order(compute, copies);
    scale<<<BLOCKS, THREADS, 0, compute>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    return finish(out);
}
