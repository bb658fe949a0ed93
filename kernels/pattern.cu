// Values that are distinct for every place and seed: one kernel writes them, another one checks them.

// Returns the value at a place: every bit of the place and of the seed affects each of its bits.
static __device__ unsigned pattern(unsigned long long at, unsigned seed) {
    unsigned x = (unsigned)at * 0x9E3779B1u + (unsigned)(at >> 32) + seed;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

extern "C" __global__ void fill_pattern(unsigned* to, unsigned long long n, unsigned seed) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    const unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    for (; i < n; i += threads) to[i] = pattern(i, seed);
}

// Adds the number of wrong values to `errors`.
extern "C" __global__ void check_pattern(const unsigned* from, unsigned long long n, unsigned seed, unsigned* errors) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    const unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    unsigned wrong = 0;
    for (; i < n; i += threads) wrong += from[i] != pattern(i, seed);
    if (wrong != 0) atomicAdd(errors, wrong);
}
