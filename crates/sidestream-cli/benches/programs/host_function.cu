// A host function works on a download; another stream refills the buffer before that function has run.
// expect: race WAW|HOST_WAW

#include "program.cuh"

struct Sum {
    const float *values;
    double sum;
};

static void add_up(void *of) {
    Sum *sum = static_cast<Sum *>(of);
    for (int i = 0; i < COUNT; i++) sum->sum += sum->values[i];
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *host = pinned_memory(0), *one = device_memory(), *two = device_memory();
    cudaStream_t a = new_stream(), b = new_stream();
    Sum sum = {host, 0};
    must(cudaMemsetAsync(one, 0x3e, BYTES, a));
    must(cudaMemsetAsync(two, 0x3f, BYTES, b));

    must(cudaMemcpyAsync(host, one, BYTES, cudaMemcpyDeviceToHost, a)); // first
    must(cudaLaunchHostFunc(a, add_up, &sum));
    if (repaired) order(b, a);
    must(cudaMemcpyAsync(host, two, BYTES, cudaMemcpyDeviceToHost, b)); // second
    must(cudaDeviceSynchronize());
    printf("%.1f\n", sum.sum);
    return finish(host);
}
