// Work of a chosen length on every value: one read, `work` steps that each depend on the previous one, one write.
// Used to measure pipelines.

extern "C" __global__ void overlap_step(const float* in, float* out, unsigned long long n, unsigned work) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    const unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    for (; i < n; i += threads) {
        float v = in[i];
        // One rounding per step, on every device and on the host: results can be compared bit for bit.
        for (unsigned step = 0; step < work; step++) v = __fmaf_rn(v, 1.0001f, 1e-4f);
        out[i] = v;
    }
}
