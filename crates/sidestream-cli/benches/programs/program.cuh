// What the programs share: memory, streams, events and kernels. Each call's result is checked where it is made.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

constexpr int COUNT = 1 << 20;
constexpr size_t BYTES = COUNT * sizeof(float);

/// Ends the program with 3 if a call failed: 1 is the exit code of a race.
inline void must(cudaError_t result, int line = __builtin_LINE()) {
    if (result == cudaSuccess) return;
    fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(result));
    exit(3);
}

/// Ends the program with 77 where the device lacks what it shows.
inline void needs(bool condition, const char *what) {
    if (condition) return;
    printf("skipped: needs %s\n", what);
    exit(77);
}

/// So few values that malloc takes them from the heap, where freed memory stays mapped.
constexpr int FEW = 4096;
constexpr size_t FEW_BYTES = FEW * sizeof(float);

inline float *device_memory(size_t bytes = BYTES) {
    float *memory;
    must(cudaMalloc(&memory, bytes));
    must(cudaMemset(memory, 0, bytes));
    must(cudaDeviceSynchronize());
    return memory;
}

inline float *pinned_memory(float value, int count = COUNT) {
    float *memory;
    must(cudaMallocHost(&memory, count * sizeof(float)));
    for (int i = 0; i < count; i++) memory[i] = value;
    return memory;
}

/// A stream that the legacy default stream does not order.
inline cudaStream_t new_stream() {
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

inline cudaEvent_t new_event() {
    cudaEvent_t event;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/// Makes `later` wait for what `earlier` has so far.
inline void order(cudaStream_t later, cudaStream_t earlier) {
    cudaEvent_t event = new_event();
    must(cudaEventRecord(event, earlier));
    must(cudaStreamWaitEvent(later, event, 0));
    must(cudaEventDestroy(event));
}

constexpr int THREADS = 256, BLOCKS = (COUNT + THREADS - 1) / THREADS;

static __global__ void scale(float *out, const float *in, float by, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * by;
}

static __global__ void increase(float *values, float by, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += by;
}

static __global__ void pass_time(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < ns);
}

/// Keeps a stream busy for 20 ms: what follows in it starts long after its call.
inline void occupy(cudaStream_t stream) {
    pass_time<<<1, 1, 0, stream>>>(20000000);
    must(cudaGetLastError());
}

/// Prints the sum of an array of the device, once all its work is complete; returns the program's exit code.
inline int finish(const float *memory, int count = COUNT) {
    float *host = static_cast<float *>(malloc(count * sizeof(float)));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(host, memory, count * sizeof(float), cudaMemcpyDefault));
    double sum = 0;
    for (int i = 0; i < count; i++) sum += host[i];
    free(host);
    printf("%.1f\n", sum);
    return 0;
}
