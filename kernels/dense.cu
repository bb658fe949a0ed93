// A layer of a perceptron: y = max(0, x * w), for `rows` rows of `width` values; w is width by width, row by row.
//
// A block of 16 by 16 threads computes 16 by 16 values, and continues with a stride of the whole grid. Each value is
// summed from the first product to the last, each rounded once, so that it does not depend on the grid or on the
// other rows.

extern "C" __global__ void dense(
    const float* x, const float* w, float* y, unsigned long long rows, unsigned long long width) {
    const unsigned side = 16, depth = 32;
    __shared__ float of_x[16][33], of_w[32][16];
    const unsigned column = threadIdx.x % side, row = threadIdx.x / side;
    const unsigned long long across = (width + side - 1) / side;
    const unsigned long long tiles = across * ((rows + side - 1) / side);
    for (unsigned long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const unsigned long long top = tile / across * side, left = tile % across * side;
        float sum = 0;
        for (unsigned long long k = 0; k < width; k += depth) {
            for (unsigned i = threadIdx.x; i < side * depth; i += side * side) {
                const unsigned long long at_row = top + i / depth, at = k + i % depth;
                of_x[i / depth][i % depth] = at_row < rows && at < width ? x[at_row * width + at] : 0;
                const unsigned long long at_k = k + i / side, to = left + i % side;
                of_w[i / side][i % side] = at_k < width && to < width ? w[at_k * width + to] : 0;
            }
            __syncthreads();
            for (unsigned i = 0; i < depth; i++) sum = fmaf(of_x[row][i], of_w[i][column], sum);
            __syncthreads();
        }
        if (top + row < rows && left + column < width) {
            y[(top + row) * width + left + column] = fmaxf(sum, 0);
        }
    }
}
