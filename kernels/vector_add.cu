// sum = a + b.

extern "C" __global__ void vector_add(const float* a, const float* b, float* sum, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    const unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    for (; i < n; i += threads) sum[i] = a[i] + b[i];
}
