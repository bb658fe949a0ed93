// ------------------------------------------------------------------ plain pictures

// The pictures that `is_plain` in `src/augment/launch.rs` selects: an affine map of bytes, at most one canvas, a blur
// of up to 7 taps, units and erasing. They have a shorter implementation with the same results. The part of the input
// that a tile depends on is first loaded into shared memory.

static const int PLAIN_COLUMNS = 64;
static const int PLAIN_ROWS = 32;
// Number of values of a row, and of a column, that a thread smooths.
static const int RUN = 8;
// A number added to this has no room for a fraction, so that the addition rounds it to an integer; its bits are then
// those of this constant plus the integer.
static const float WHOLE = 12582912.f;
static const u32 WHOLE_BITS = 0x4B400000;

// The values of a record that each pixel needs, in registers: the compiler cannot know that stores to a tile do not
// change the record.
struct Plain {
    float across, down;
    int readable[4];
    bool nearest;
    // One word per pixel: a pixel is loaded by one instruction, and bytes are read from memory by rows.
    const u32* source;
    int left, top;
    u32 width;
};

// Returns the range of values of a map's row, from the smallest to the largest.
static __device__ __forceinline__ void range_of(const float* m, const float* x, const float* y, float& low, float& high) {
    const int right = m[0] < 0.f, down = m[1] < 0.f;
    low = row_of(m, x[right], y[down]);
    high = row_of(m, x[1 - right], y[1 - down]);
}

// Called by all threads of the block. `INSIDE`: all bytes exist, and the distance between any two fits into a signed
// 32-bit number.
template <bool INSIDE>
static __device__ __forceinline__ void load_source(const unsigned char* bytes, u64 length, i64 corner, const int* stride, u32* to, u32 width,
                                                   u32 count) {
    const u32 rows = THREADS / width, columns = THREADS - rows * width;
    u32 column = threadIdx.x % width;
    const i64 start = (i64)(int)column * stride[0] + (i64)(int)(threadIdx.x / width) * stride[1];
    const i64 step = (i64)(int)columns * stride[0] + (i64)(int)rows * stride[1], turn = (i64)stride[1] - (i64)(int)width * stride[0];
    if (INSIDE) {
        const unsigned char *red = bytes + corner, *green = red + stride[2], *blue = green + stride[2];
        int place = (int)start;
#pragma unroll 4
        for (u32 at = threadIdx.x; at < count; at += THREADS) {
            to[at] = (u32)__ldg(red + place) | (u32)__ldg(green + place) << 8 | (u32)__ldg(blue + place) << 16;
            place += (int)step;
            column += columns;
            if (column >= width) column -= width, place += (int)turn;
        }
        return;
    }
    i64 first = corner + start;
    for (u32 at = threadIdx.x; at < count; at += THREADS) {
        u32 word = 0;
#pragma unroll
        for (int c = 0; c < 3; c++) {
            const u64 place = (u64)(first + (i64)c * stride[2]);
            if (place < length) word |= (u32)__ldg(bytes + place) << 8 * c;
        }
        to[at] = word;
        first += step;
        column += columns;
        if (column >= width) column -= width, first += turn;
    }
}

// Adds a byte of a word to 2 to the power of 23: two cheap instructions convert it, where the conversion itself is
// slow.
static __device__ __forceinline__ float raised(u32 word, int c) {
    return __uint_as_float(__byte_perm(word, 0x4B000000, 0x7440 | c));
}

static const float RAISED = 8388608.f;

// `warped` without canvases, at a place. `WITHIN`: it is between pixels, and no place of the tile needs to be
// clamped.
template <bool WITHIN>
static __device__ __forceinline__ Pixel sampled(const Plain& of, float px, float py) {
    float x = px - 0.5f, y = py - 0.5f;
    if (!WITHIN) x = limit(x, -1e6f, 1e6f), y = limit(y, -1e6f, 1e6f);
    Pixel pixel;
    const bool nearest = !WITHIN && of.nearest;
    const float left = nearest ? __fadd_rn(x, WHOLE) : __fadd_rd(x, WHOLE), top = nearest ? __fadd_rn(y, WHOLE) : __fadd_rd(y, WHOLE);
    const int ix = (int)(__float_as_uint(left) - WHOLE_BITS), iy = (int)(__float_as_uint(top) - WHOLE_BITS);
    u32 at, right = 1, below = of.width;
    if (WITHIN) {
        at = (u32)(iy - of.top) * of.width + (u32)(ix - of.left);
    } else {
        const int x0 = limit(ix, of.readable[0], of.readable[2]), y0 = limit(iy, of.readable[1], of.readable[3]);
        right = (u32)(limit(ix + 1, of.readable[0], of.readable[2]) - x0);
        below = (u32)(limit(iy + 1, of.readable[1], of.readable[3]) - y0) * of.width;
        at = (u32)(y0 - of.top) * of.width + (u32)(x0 - of.left);
    }
    const u32* from = of.source + at;
    const u32 a = from[0];
    if (nearest) {
#pragma unroll
        for (int c = 0; c < 3; c++) pixel.c[c] = raised(a, c) - RAISED;
        return pixel;
    }
    const u32 b = from[right], c = from[below], d = from[below + right];
    const float fx = x - (left - WHOLE), fy = y - (top - WHOLE);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float upper = __fmaf_rn(fx, raised(b, k) - raised(a, k), raised(a, k) - RAISED);
        const float lower = __fmaf_rn(fx, raised(d, k) - raised(c, k), raised(c, k) - RAISED);
        pixel.c[k] = __fmaf_rn(fy, lower - upper, upper);
    }
    return pixel;
}

// Warps columns and rows of a tile into three planes; `R` columns and rows beside it are mirrored into the picture.
template <int R, bool WITHIN>
static __device__ __forceinline__ void warp_tile(const Record& of, const Plain& plain, const float2* down, float* planes) {
    const int tall = PLAIN_ROWS + 2 * R, stride = PLAIN_COLUMNS + 2 * R + 1;
    // First the columns of the tile, then those beside it.
#pragma unroll 1
    for (int part = 0; part < 1 + (R > 0); part++) {
        const int across = part == 0 ? PLAIN_COLUMNS : max(2 * R, 1), rows = THREADS / across;
        int column = threadIdx.x % across, row = threadIdx.x / across;
        column += part == 0 || column >= R ? part == 0 ? R : PLAIN_COLUMNS : 0;
        // Columns beyond the smoothed ones may have any value, so they use the last one.
        const u32 x = mirrored(min((int)blockIdx.x * PLAIN_COLUMNS + column - R, (int)of.width - 1 + R), of.width);
        const float ax = __fmul_rn(of.map[0], (float)x + 0.5f), ay = __fmul_rn(of.map[3], (float)x + 0.5f);
        float* to = planes + row * stride + column;
#pragma unroll(WITHIN ? 2 : 1)
        for (; row < tall; row += rows, to += rows * stride) {
            const float2 by = down[row];
            const float px = __fadd_rn(__fadd_rn(ax, by.x), plain.across), py = __fadd_rn(__fadd_rn(ay, by.y), plain.down);
            Pixel pixel;
            if (WITHIN || !of.canvases) {
                pixel = sampled<WITHIN>(plain, px, py);
            } else {
                const Canvas& canvas = of.canvas[0];
                const u32 y = mirrored(min((int)blockIdx.y * PLAIN_ROWS + row - R, (int)of.height - 1 + R), of.height);
                const float cx = row_of(canvas.map, (float)x + 0.5f, (float)y + 0.5f), cy = row_of(canvas.map + 3, (float)x + 0.5f, (float)y + 0.5f);
                // Distance from the canvas's edge. Few pixels are so near that they are partly inside.
                const float depth = fminf(fminf(cx, canvas.width - cx), fminf(cy, canvas.height - cy));
                if (depth < -0.51f) {
#pragma unroll
                    for (int c = 0; c < 3; c++) pixel.c[c] = canvas.fill[c];
                } else {
                    pixel = sampled<WITHIN>(plain, px, py);
                    if (!(depth > 0.51f)) pixel = on_canvas(canvas, pixel, x, y);
                }
            }
#pragma unroll
            for (int c = 0; c < 3; c++) to[c * tall * stride] = pixel.c[c];
        }
    }
}

template <int R>
static __device__ __forceinline__ void smooth_rows(const float* weights, float* planes) {
    const int stride = PLAIN_COLUMNS + 2 * R + 1, lines = 3 * (PLAIN_ROWS + 2 * R), items = lines * (PLAIN_COLUMNS / RUN);
    const int turns = (items + THREADS - 1) / THREADS;
    // All values are read before any is written, so no second buffer is needed. Threads side by side have lines one
    // below the other, and a line's length is odd, so that they use different banks.
    float sums[turns][RUN];
#pragma unroll
    for (int turn = 0; turn < turns; turn++) {
        const int item = threadIdx.x + turn * THREADS;
        const float* from = planes + item % lines * stride + item / lines * RUN;
        float near[RUN + 2 * R];
#pragma unroll
        for (int k = 0; k < RUN + 2 * R; k++) near[k] = item < items ? from[k] : 0.f;
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            sums[turn][k] = 0.f;
#pragma unroll
            for (int j = 0; j <= 2 * R; j++) sums[turn][k] = __fmaf_rn(weights[j < R ? R - j : j - R], near[k + j], sums[turn][k]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < turns; turn++) {
        const int item = threadIdx.x + turn * THREADS;
        if (item >= items) break;
        float* to = planes + item % lines * stride + item / lines * RUN;
#pragma unroll
        for (int k = 0; k < RUN; k++) to[k] = sums[turn][k];
    }
    __syncthreads();
}

template <int R>
static __device__ __forceinline__ void plain(const unsigned char* bytes, u64 length, const Record* records, unsigned char* output, u64 room,
                                             u32 pictures, u32 form, u32 source_pixels) {
    const int tall = PLAIN_ROWS + 2 * R, stride = PLAIN_COLUMNS + 2 * R + 1;
    __shared__ Record of;
    __shared__ float2 down[tall];
    const u32 picture = blockIdx.z;
    if (picture >= pictures) return;
    load_record(of, records + picture);
    const int left = blockIdx.x * PLAIN_COLUMNS, top = blockIdx.y * PLAIN_ROWS, width = of.width, height = of.height;
    if (of.kind == SKIPPED || left >= width || top >= height) return;
    float* planes = shared;
    u32* source = (u32*)(shared + 3 * tall * stride);

    // The pixels of the input that the tile needs, with its neighbours, which include mirrored ones.
    const float xs[2] = {(float)max(left - R, 0) + 0.5f, (float)min(left + PLAIN_COLUMNS - 1 + R, width - 1) + 0.5f};
    const float ys[2] = {(float)max(top - R, 0) + 0.5f, (float)min(top + PLAIN_ROWS - 1 + R, height - 1) + 0.5f};
    Plain plain;
    bool within = of.filter != NEAREST;
    int first[2], last[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float low, high;
        range_of(of.map + 3 * k, xs, ys, low, high);
        low = floorf(limit(low - 0.51f, -1e6f, 1e6f));
        high = floorf(limit(high - 0.49f, -1e6f, 1e6f)) + 1.f;
        first[k] = limit((int)low, of.readable[k], of.readable[2 + k]);
        last[k] = limit((int)high, of.readable[k], of.readable[2 + k]);
        within = within && first[k] == (int)low && last[k] == (int)high;
        if (of.canvases) {
            range_of(of.canvas[0].map + 3 * k, xs, ys, low, high);
            within = within && low > 0.51f && high < (k ? of.canvas[0].height : of.canvas[0].width) - 0.51f;
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) plain.readable[k] = of.readable[k];
    plain.across = of.map[2];
    plain.down = of.map[5];
    plain.nearest = of.filter == NEAREST;
    plain.source = source;
    plain.left = first[0];
    plain.top = first[1];
    plain.width = last[0] - first[0] + 1;
    const u32 count = plain.width * (last[1] - first[1] + 1);
    // The host has checked that they fit.
    if (count > source_pixels) return;
    const i64 corner = (i64)wide(of.source) + (i64)first[0] * of.stride[0] + (i64)first[1] * of.stride[1];
    const i64 end = (i64)wide(of.source) + (i64)last[0] * of.stride[0] + (i64)last[1] * of.stride[1] + 2 * (i64)of.stride[2];
    const int strides[3] = {of.stride[0], of.stride[1], of.stride[2]};
    if (corner >= 0 && (strides[0] | strides[1] | strides[2]) >= 0 && (u64)end < length && end - corner <= 0x7fffffff) {
        load_source<true>(bytes, length, corner, strides, source, plain.width, count);
    } else {
        load_source<false>(bytes, length, corner, strides, source, plain.width, count);
    }
    if (threadIdx.x < tall) {
        const float y = (float)mirrored(min(top + (int)threadIdx.x - R, height - 1 + R), height) + 0.5f;
        down[threadIdx.x] = make_float2(__fmul_rn(of.map[1], y), __fmul_rn(of.map[4], y));
    }
    __syncthreads();
    if (within) warp_tile<R, true>(of, plain, down, planes);
    else warp_tile<R, false>(of, plain, down, planes);
    __syncthreads();

    // Without a blur only the middle has a weight. Weights beyond a smaller kernel are 0.
    const bool smoothed = of.around != 0.f;
    float weights[2][R + 1];
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int j = 0; j <= R; j++) weights[k][j] = smoothed ? of.weights[k][j] : j == 0 ? 1.f : 0.f;
    }
    if (R > 0) smooth_rows<R>(weights[0], planes);

    const int column = threadIdx.x % PLAIN_COLUMNS, row = threadIdx.x / PLAIN_COLUMNS * RUN;
    const int x = left + column, kind = form & 3;
    const bool nhwc = form & 4;
    const u64 plane = (u64)width * height, target = wide(of.target);
    if (x >= width || target + 3 * plane > room >> (kind == 0 ? 0 : kind == 3 ? 2 : 1)) return;
    const u64 across = nhwc ? 3 : 1, step = across * width;
    const u32 rows = limit(height - top - row, 0, RUN), erased = of.erased;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        const float* from = planes + (c * tall + row) * stride + column;
        float near[RUN + 2 * R];
#pragma unroll
        for (int k = 0; k < RUN + 2 * R; k++) near[k] = from[k * stride];
        const float scale = of.scale[c], bias = of.bias[c];
        u64 at = target + (u64)c * (nhwc ? 1 : plane) + (u64)(top + row) * step + (u64)x * across;
        float values[RUN];
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j <= 2 * R; j++) sum = __fmaf_rn(weights[1][j < R ? R - j : j - R], near[k + j], sum);
            values[k] = (smoothed ? clamp(sum) : sum) * scale + bias;
        }
        for (u32 part = 0; part < erased; part++) {
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                if (is_within(of.erase[part].within, x, top + row + k)) values[k] = of.erase[part].value[c];
            }
        }
        if (kind == 3) {
            float* to = (float*)output + at;
#pragma unroll
            for (u32 k = 0; k < RUN; k++, to += step) {
                if (k < rows) __stcs(to, values[k]);
            }
        } else {
#pragma unroll
            for (u32 k = 0; k < RUN; k++, at += step) {
                if (k < rows) store(output, room, at, kind, values[k]);
            }
        }
    }
}
