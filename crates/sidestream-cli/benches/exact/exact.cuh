// What these programs share beside `program.cuh`: kernels that touch a range to the byte, and the bytes that race.

#pragma once

#include "../programs/program.cuh"
#include <cstdint>
#include <cstring>

/// A page by which the probe keeps what a launch touched.
constexpr size_t PAGE = 64 << 10;

/// Says which bytes race, for the runner. The program's output is not changed by it.
inline void races(const void *at, size_t bytes) { fprintf(stderr, "race %p %zu\n", at, bytes); }

template <class T = uint8_t> T *memory_of(size_t bytes) { return reinterpret_cast<T *>(device_memory(bytes)); }

/// Returns a value of which each byte is this one.
template <class T> T each_byte(int byte) {
    T value;
    memset(&value, byte, sizeof value);
    return value;
}

template <class T> __global__ void fill(T *to, size_t count, T value) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = value;
}

/// Stores the bytes' sum, and otherwise only reads.
template <class T> __global__ void add_up(unsigned *sum, const T *from, size_t count) {
    unsigned own = 0;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const T value = from[i];
        for (size_t byte = 0; byte < sizeof value; byte++) own += reinterpret_cast<const uint8_t *>(&value)[byte];
    }
    atomicAdd(sum, own);
}

static __global__ void fill_bytes(void *to, size_t count, int byte) {
    auto *bytes = static_cast<uint8_t *>(to);
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) bytes[i] = byte;
}

/// Prints the sum of the bytes, once all work is complete; returns the program's exit code.
inline int finish_bytes(const void *memory, size_t bytes) {
    auto *host = static_cast<uint8_t *>(malloc(bytes));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(host, memory, bytes, cudaMemcpyDefault));
    unsigned long long sum = 0;
    for (size_t i = 0; i < bytes; i++) sum += host[i];
    free(host);
    printf("%llu\n", sum);
    return 0;
}

/// Ends the program with 77 before Hopper, which has bulk and tensor copies, clusters and dependent launches.
inline void needs_hopper() {
    int major;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    needs(major >= 9, "compute capability 9.0");
}
