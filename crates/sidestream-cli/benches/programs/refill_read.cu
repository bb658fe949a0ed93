// A file is read into a pinned buffer by read(2), while the upload of the last block still reads the buffer.
// expect: error HOST_WAR

#include "program.cuh"
#include <unistd.h>

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(2), *values = device_memory();
    FILE *file = tmpfile();
    needs(file != nullptr && fwrite(host, 1, BYTES, file) == BYTES && fflush(file) == 0, "a temporary file");
    lseek(fileno(file), 0, SEEK_SET);
    for (int i = 0; i < COUNT; i++) host[i] = 1;
    cudaStream_t stream = new_stream();

    occupy(stream);
    must(cudaMemcpyAsync(values, host, BYTES, cudaMemcpyHostToDevice, stream)); // first
    if (repaired) must(cudaStreamSynchronize(stream));
    if (read(fileno(file), host, BYTES) != BYTES) return 3; // second
    printf("%g %g\n", host[0], host[COUNT - 1]);
    return finish(values);
}
