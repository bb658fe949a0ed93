// A pass of an augmentation over a batch: a block computes a tile of one picture. Each step is defined in Rust, in
// `src/augment/render.rs` and `step.rs`, where the functions have the same names. The file is compiled without fused
// multiplications, so that both find the same places and round colours equally. Only interpolation and the blur are
// fused explicitly, since they are half of the arithmetic. Where values become levels of bytes after each act nothing
// is fused.
//
// A tile with its neighbours is warped into shared memory, smoothed along rows, then down columns into registers, and
// written by rows. So each pixel of the input is read once, and each pixel of the result is written once.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ------------------------------------------------------------------ what the host says: `src/augment/record.rs`

struct Canvas {
    float map[9];
    float width, height;
    float fill[3];
    u32 edge;
};

struct Step {
    u32 kind;
    float value;
};

struct Erased {
    u32 within[4];
    float value[3];
};

struct Record {
    u32 source[2];
    int stride[3];
    u32 kind;
    int readable[4];
    u32 width, height;
    u32 target[2];
    float map[9];
    u32 filter;
    float footprint[6];
    u32 canvases;
    Canvas canvas[3];
    u32 radius[2];
    float weights[2][16];
    float own, around;
    u32 keeps_edge;
    u32 steps_before, steps;
    Step step[8];
    u32 measured;
    u32 levels;
    u32 erased;
    Erased erase[2];
    float scale[3], bias[3];
    u32 partner;
    float share;
    u32 within[4];
};

enum { HARD, SOFT, TWICE };
enum { NEAREST, BILINEAR, FOOTPRINT };
enum { SKIPPED, BYTES, NUMBERS };
enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAYSCALE, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE };

static const u32 STEPS = 8;
static const u32 WORDS = 772;
static const u32 COLUMNS = 32;
static const u32 THREADS = 256;
// Maximum number of rows of a tile, a multiple of KEPT: each thread keeps some rows of a column.
static const u32 MOST_ROWS = 32;
static const u32 KEPT = MOST_ROWS * COLUMNS / THREADS;

struct Input {
    const unsigned char* bytes;
    const float* numbers;
    u64 bytes_length, numbers_length;
};

struct Pixel {
    float c[3];
};

static __device__ __forceinline__ u64 wide(const u32* words) {
    return (u64)words[0] | (u64)words[1] << 32;
}

static __device__ __forceinline__ int limit(int value, int low, int high) {
    return min(max(value, low), high);
}

static __device__ __forceinline__ float limit(float value, float low, float high) {
    return fminf(fmaxf(value, low), high);
}

static __device__ __forceinline__ float clamp(float value) {
    return limit(value, 0.f, 255.f);
}

// ------------------------------------------------------------------ the warp

static __device__ __forceinline__ Pixel pixel_of(const Input& input, const Record& of, int x, int y) {
    x = limit(x, of.readable[0], of.readable[2]);
    y = limit(y, of.readable[1], of.readable[3]);
    const i64 first = (i64)wide(of.source) + (i64)x * of.stride[0] + (i64)y * of.stride[1];
    Pixel pixel;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        const u64 at = (u64)(first + (i64)c * of.stride[2]);
        pixel.c[c] = 0.f;
        if (of.kind == BYTES) {
            if (at < input.bytes_length) pixel.c[c] = (float)__ldg(input.bytes + at);
        } else {
            if (at < input.numbers_length) pixel.c[c] = __ldg(input.numbers + at);
        }
    }
    return pixel;
}

static __device__ __forceinline__ float row_of(const float* m, float x, float y) {
    return __fadd_rn(__fadd_rn(__fmul_rn(m[0], x), __fmul_rn(m[1], y)), m[2]);
}

static __device__ __forceinline__ bool placed(const float* map, u32 column, u32 row, float& px, float& py) {
    const float x = (float)column + 0.5f, y = (float)row + 0.5f;
    px = row_of(map, x, y);
    py = row_of(map + 3, x, y);
    if (map[6] == 0.f && map[7] == 0.f) return true;
    const float w = row_of(map + 6, x, y);
    px = __fdiv_rn(px, w);
    py = __fdiv_rn(py, w);
    return w > 0.f;
}

// Returns `sum + a * b`, fused unless values become levels.
static __device__ __forceinline__ float plus(float sum, float a, float b, bool levels) {
    return levels ? sum + a * b : __fmaf_rn(a, b, sum);
}

static __device__ __forceinline__ Pixel between(const Pixel& a, const Pixel& b, const Pixel& c, const Pixel& d, float fx, float fy, bool levels) {
    Pixel pixel;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float upper = plus(a.c[k], fx, b.c[k] - a.c[k], levels);
        const float lower = plus(c.c[k], fx, d.c[k] - c.c[k], levels);
        pixel.c[k] = plus(upper, fy, lower - upper, levels);
    }
    return pixel;
}

static __device__ Pixel bilinear(const Input& input, const Record& of, float x, float y) {
    x = limit(x - 0.5f, -1e6f, 1e6f);
    y = limit(y - 0.5f, -1e6f, 1e6f);
    const float left = floorf(x), top = floorf(y);
    const int ix = (int)left, iy = (int)top;
    return between(pixel_of(input, of, ix, iy), pixel_of(input, of, ix + 1, iy), pixel_of(input, of, ix, iy + 1),
                   pixel_of(input, of, ix + 1, iy + 1), x - left, y - top, of.levels);
}

// Computes the footprint of a pixel, if it is larger than the four pixels of bilinear interpolation.
static __device__ bool footprint_at(const Record& of, float px, float py, u32 column, u32 row, float* shape) {
    if (of.filter != FOOTPRINT) return false;
    const float* m = of.map;
    if (m[6] == 0.f && m[7] == 0.f) {
        for (int k = 0; k < 6; k++) shape[k] = of.footprint[k];
        return true;
    }
    const double w = row_of(m + 6, (float)column + 0.5f, (float)row + 0.5f);
    const double a[2] = {(m[0] - (double)m[6] * px) / w, (m[3] - (double)m[6] * py) / w};
    const double b[2] = {(m[1] - (double)m[7] * px) / w, (m[4] - (double)m[7] * py) / w};
    const double la = sqrt(a[0] * a[0] + a[1] * a[1]), lb = sqrt(b[0] * b[0] + b[1] * b[1]);
    if (!(la > 1.0 || lb > 1.0)) return false;
    const double det = a[0] * b[1] - a[1] * b[0];
    const double wa = fmax(la, 1.0) / la, wb = fmax(lb, 1.0) / lb;
    shape[0] = (float)(b[1] / det / wa);
    shape[1] = (float)(-b[0] / det / wa);
    shape[2] = (float)(-a[1] / det / wb);
    shape[3] = (float)(a[0] / det / wb);
    shape[4] = (float)(fabs(a[0]) * wa + fabs(b[0]) * wb);
    shape[5] = (float)(fabs(a[1]) * wa + fabs(b[1]) * wb);
    return true;
}

static __device__ Pixel filtered(const Input& input, const Record& of, float x, float y, const float* shape) {
    const int left = max((int)floorf(limit(x - shape[4], -1e6f, 1e6f)), of.readable[0]);
    const int right = min((int)ceilf(limit(x + shape[4], -1e6f, 1e6f)), of.readable[2]);
    const int top = max((int)floorf(limit(y - shape[5], -1e6f, 1e6f)), of.readable[1]);
    const int bottom = min((int)ceilf(limit(y + shape[5], -1e6f, 1e6f)), of.readable[3]);
    Pixel sum = {{0.f, 0.f, 0.f}};
    float total = 0.f;
    for (int row = top; row <= bottom; row++) {
        const float dy = __fsub_rn((float)row + 0.5f, y);
        for (int column = left; column <= right; column++) {
            const float dx = __fsub_rn((float)column + 0.5f, x);
            const float across = 1.f - fabsf(__fadd_rn(__fmul_rn(shape[0], dx), __fmul_rn(shape[1], dy)));
            const float down = 1.f - fabsf(__fadd_rn(__fmul_rn(shape[2], dx), __fmul_rn(shape[3], dy)));
            if (across > 0.f && down > 0.f) {
                const float weight = across * down;
                const Pixel pixel = pixel_of(input, of, column, row);
#pragma unroll
                for (int c = 0; c < 3; c++) sum.c[c] += weight * pixel.c[c];
                total += weight;
            }
        }
    }
    if (!(total > 0.f)) return bilinear(input, of, x, y);
#pragma unroll
    for (int c = 0; c < 3; c++) sum.c[c] = sum.c[c] / total;
    return sum;
}

static __device__ __forceinline__ Pixel on_canvas(const Canvas& canvas, Pixel pixel, u32 column, u32 row) {
    float x, y, inside = 0.f;
    if (placed(canvas.map, column, row, x, y)) {
        if (canvas.edge == HARD) {
            x = rintf(x - 0.5f);
            y = rintf(y - 0.5f);
            inside = x >= 0.f && y >= 0.f && x < canvas.width && y < canvas.height ? 1.f : 0.f;
        } else {
            inside = __saturatef(x + 0.5f) * __saturatef(canvas.width - x + 0.5f) *
                     (__saturatef(y + 0.5f) * __saturatef(canvas.height - y + 0.5f));
        }
    }
    if (inside == 1.f) return pixel;
    const float first = canvas.edge == TWICE ? inside : 1.f;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        const float fill = canvas.fill[c];
        pixel.c[c] = inside * (first * pixel.c[c] - fill) + fill;
    }
    return pixel;
}

// Not inlined, like `coloured`: if they were inlined into each kernel, the driver would take seconds to compile.
static __device__ __noinline__ Pixel warped(const Input& input, const Record& of, u32 column, u32 row) {
    float x, y, shape[6];
    Pixel pixel = {{0.f, 0.f, 0.f}};
    if (placed(of.map, column, row, x, y)) {
        if (of.filter == NEAREST) {
            x = limit(x - 0.5f, -1e6f, 1e6f);
            y = limit(y - 0.5f, -1e6f, 1e6f);
            pixel = pixel_of(input, of, (int)rintf(x), (int)rintf(y));
        } else if (footprint_at(of, x, y, column, row, shape)) {
            pixel = filtered(input, of, x, y, shape);
        } else {
            pixel = bilinear(input, of, x, y);
        }
    }
    for (u32 k = 0; k < of.canvases; k++) pixel = on_canvas(of.canvas[k], pixel, column, row);
    if (of.levels) {
#pragma unroll
        for (int c = 0; c < 3; c++) pixel.c[c] = rintf(pixel.c[c]);
    }
    return pixel;
}

static __device__ __forceinline__ u32 mirrored(int at, u32 length) {
    const int last = (int)length - 1;
    at = last - abs(last - abs(at));
    return (u32)limit(at, 0, last);
}

// ------------------------------------------------------------------ colours

// The statistics in the words of a picture: `src/augment/statistics.rs`.
struct Statistics {
    float mean;
    float low[3], span[3];
    unsigned char equalized[3][256];
};

// Called by all threads of the block.
static __device__ void figures_of(const u32* words, u32 pixels, u32 kind, Statistics& all) {
    if (threadIdx.x == 0) all.mean = (float)((double)wide(words) / 65536.0 / (double)pixels);
    if (kind != CONTRAST && threadIdx.x < 3) {
        const u32 c = threadIdx.x;
        const u32* histogram = words + 2 + 256 * c;
        u32 low = 0, high = 255;
        while (low < 255 && histogram[low] == 0) low++;
        while (high > 0 && histogram[high] == 0) high--;
        all.low[c] = low < high ? (float)low : 0.f;
        all.span[c] = low < high ? (float)(high - low) * (1.f / 255.f) : 1.f;
        const u32 step = (pixels - histogram[high]) / 255;
        u32 below = 0;
        for (u32 level = 0; level < 256; level++) {
            all.equalized[c][level] = (unsigned char)(step == 0 ? level : min((below + step / 2) / step, 255u));
            below += histogram[level];
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ float gray(const Pixel& pixel, bool levels) {
    const float gray = 0.2989f * pixel.c[0] + 0.587f * pixel.c[1] + 0.114f * pixel.c[2];
    return levels ? floorf(gray) : gray;
}

static __device__ Pixel hue(const Pixel& pixel, float turn, bool levels) {
    const float r = pixel.c[0] / 255.f, g = pixel.c[1] / 255.f, b = pixel.c[2] / 255.f;
    const float most = fmaxf(fmaxf(r, g), b), least = fminf(fminf(r, g), b);
    const float range = most - least;
    if (range <= 0.f) return pixel;
    const float saturation = range / most;
    const float rc = (most - r) / range, gc = (most - g) / range, bc = (most - b) / range;
    const float sixth = most == r ? bc - gc : most == g ? 2.f + rc - bc : 4.f + gc - rc;
    const float h = sixth / 6.f + turn + 2.f;
    const float h6 = (h - floorf(h)) * 6.f;
    const float i = floorf(h6), f = h6 - i;
    const float p = most * (1.f - saturation);
    const float q = most * (1.f - saturation * f);
    const float t = most * (1.f - saturation * (1.f - f));
    Pixel turned;
    switch ((int)i) {
        case 1: turned.c[0] = q, turned.c[1] = most, turned.c[2] = p; break;
        case 2: turned.c[0] = p, turned.c[1] = most, turned.c[2] = t; break;
        case 3: turned.c[0] = p, turned.c[1] = q, turned.c[2] = most; break;
        case 4: turned.c[0] = t, turned.c[1] = p, turned.c[2] = most; break;
        case 5: turned.c[0] = most, turned.c[1] = p, turned.c[2] = q; break;
        default: turned.c[0] = most, turned.c[1] = t, turned.c[2] = p; break;
    }
#pragma unroll
    for (int c = 0; c < 3; c++) {
        turned.c[c] = levels ? floorf(limit(turned.c[c], 0.f, 1.f) * 255.999f) : clamp(turned.c[c] * 255.f);
    }
    return turned;
}

static __device__ Pixel step_of(const Step& step, Pixel pixel, bool levels, const Statistics& figures) {
    const float f = step.value;
    float other = 0.f;
    if (step.kind == HUE) return hue(pixel, f, levels);
    if (step.kind == CONTRAST) other = figures.mean;
    if (step.kind == SATURATION || step.kind == GRAYSCALE) other = gray(pixel, levels);
#pragma unroll
    for (int c = 0; c < 3; c++) {
        float v = pixel.c[c];
        switch (step.kind) {
            case BRIGHTNESS: v = clamp(v * f); break;
            case CONTRAST:
            case SATURATION: v = clamp(v * f + other * (1.f - f)); break;
            case GRAYSCALE: v = other; break;
            case POSTERIZE: v = floorf(rintf(v) / f) * f; break;
            case SOLARIZE: v = v >= f ? 255.f - v : v; break;
            case AUTOCONTRAST: v = clamp((v - figures.low[c]) / figures.span[c]); break;
            case EQUALIZE: v = (float)figures.equalized[c][limit((int)rintf(v), 0, 255)]; break;
        }
        pixel.c[c] = levels ? truncf(v) : v;
    }
    return pixel;
}

static __device__ __noinline__ Pixel coloured(const Record& of, Pixel pixel, u32 first, u32 last, const Statistics& figures) {
    for (u32 at = first; at < last; at++) pixel = step_of(of.step[at], pixel, of.levels, figures);
    return pixel;
}

// ------------------------------------------------------------------ a tile

struct Tile {
    // Its first column and row, and its number of rows.
    u32 left, top, rows;
    // Three planes with the neighbours, and three that are smoothed along rows.
    float* around;
    float* smooth;
};

// Warps a tile with its neighbours, colours it, and smooths it along rows; called by all threads of the block.
// Neighbours beyond the picture are mirrored into it.
static __device__ void prepare(const Input& input, const Record& of, const Tile& tile, u32 steps, bool smoothed, const Statistics& figures) {
    const u32 rx = smoothed ? of.radius[0] : 0, ry = smoothed ? of.radius[1] : 0;
    const u32 wide = COLUMNS + 2 * rx, tall = tile.rows + 2 * ry;
    const u32 before = min(steps, of.steps_before), width = of.width, height = of.height;
    for (u32 at = threadIdx.x; at < wide * tall; at += THREADS) {
        const u32 row = at / wide, column = at - row * wide;
        const u32 x = mirrored((int)(tile.left + column) - (int)rx, width);
        const u32 y = mirrored((int)(tile.top + row) - (int)ry, height);
        const Pixel pixel = coloured(of, warped(input, of, x, y), 0, before, figures);
#pragma unroll
        for (u32 c = 0; c < 3; c++) tile.around[c * wide * tall + at] = pixel.c[c];
    }
    __syncthreads();
    if (!smoothed) return;
    // Four columns per thread: values that they share are loaded once.
    const u32 groups = COLUMNS / 4;
    const bool levels = of.levels;
    for (u32 at = threadIdx.x; at < 3 * tall * groups; at += THREADS) {
        const u32 line = at / groups, first = at % groups * 4;
        const float* from = tile.around + line * wide + first;
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
        float near[4] = {0.f, from[0], from[1], from[2]};
        for (u32 k = 0; k <= 2 * rx; k++) {
            const float weight = of.weights[0][abs((int)k - (int)rx)];
            near[0] = near[1], near[1] = near[2], near[2] = near[3], near[3] = from[k + 3];
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] = plus(sum[j], weight, near[j], levels);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) tile.smooth[line * COLUMNS + first + j] = sum[j];
    }
    __syncthreads();
}

// Computes pixels of a prepared tile: KEPT rows of a column, from this one on. Values that they share are loaded
// once.
static __device__ __forceinline__ void finished(const Record& of, const Tile& tile, u32 column, u32 row, u32 steps, bool smoothed,
                                                const Statistics& figures, Pixel* pixels) {
    const u32 rx = smoothed ? of.radius[0] : 0, ry = smoothed ? of.radius[1] : 0;
    const u32 wide = COLUMNS + 2 * rx, tall = tile.rows + 2 * ry;
    const float* own = tile.around + (row + ry) * wide + column + rx;
#pragma unroll
    for (u32 c = 0; c < 3; c++) {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) pixels[k].c[c] = own[c * wide * tall + k * wide];
    }
    if (!smoothed) return;
    const bool levels = of.levels;
    const float weight_own = of.own, weight_around = of.around;
    bool is_kept[KEPT];
    const u32 x = tile.left + column;
#pragma unroll
    for (u32 k = 0; k < KEPT; k++) {
        const u32 y = tile.top + row + k;
        is_kept[k] = of.keeps_edge && (x == 0 || y == 0 || x + 1 == of.width || y + 1 == of.height);
    }
#pragma unroll
    for (u32 c = 0; c < 3; c++) {
        const float* from = tile.smooth + (c * tall + row) * COLUMNS + column;
        float sum[KEPT], near[KEPT];
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) sum[k] = 0.f;
        near[0] = 0.f;
#pragma unroll
        for (u32 k = 1; k < KEPT; k++) near[k] = from[(k - 1) * COLUMNS];
        for (u32 at = 0; at <= 2 * ry; at++) {
            const float weight = of.weights[1][abs((int)at - (int)ry)];
#pragma unroll
            for (u32 k = 1; k < KEPT; k++) near[k - 1] = near[k];
            near[KEPT - 1] = from[(at + KEPT - 1) * COLUMNS];
#pragma unroll
            for (u32 k = 0; k < KEPT; k++) sum[k] = plus(sum[k], weight, near[k], levels);
        }
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const float v = is_kept[k] ? pixels[k].c[c] : clamp(weight_own * pixels[k].c[c] + weight_around * sum[k]);
            pixels[k].c[c] = levels ? rintf(v) : v;
        }
    }
#pragma unroll
    for (u32 k = 0; k < KEPT; k++) pixels[k] = coloured(of, pixels[k], of.steps_before, steps, figures);
}

static __device__ __forceinline__ bool is_within(const u32* part, u32 x, u32 y) {
    return x >= part[0] && x < part[2] && y >= part[1] && y < part[3];
}

static __device__ __forceinline__ Pixel in_units(const Record& of, Pixel pixel, u32 x, u32 y) {
#pragma unroll
    for (int c = 0; c < 3; c++) pixel.c[c] = pixel.c[c] * of.scale[c] + of.bias[c];
    for (u32 k = 0; k < of.erased; k++) {
        if (is_within(of.erase[k].within, x, y)) {
#pragma unroll
            for (int c = 0; c < 3; c++) pixel.c[c] = of.erase[k].value[c];
        }
    }
    return pixel;
}

// ------------------------------------------------------------------ the result

static __device__ __forceinline__ void store(unsigned char* to, u64 room, u64 at, u32 kind, float value) {
    if (kind == 3) {
        if (4 * at + 4 <= room) __stcs((float*)to + at, value);
    } else if (kind == 0) {
        if (at < room) to[at] = (unsigned char)limit(rintf(value), 0.f, 255.f);
    } else if (2 * at + 2 <= room) {
        unsigned short half;
        if (kind == 1) {
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        } else {
            // Rounds to the nearest, ties to even; NaN stays NaN.
            const u32 bits = __float_as_uint(value);
            half = (unsigned short)(value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
        ((unsigned short*)to)[at] = half;
    }
}

extern __shared__ float shared[];

static __device__ __forceinline__ void load_record(Record& to, const Record* from) {
    const u32* words = (const u32*)from;
    for (u32 at = threadIdx.x; at < sizeof(Record) / 4; at += THREADS) ((u32*)&to)[at] = __ldg(words + at);
    __syncthreads();
}

static __device__ __forceinline__ Tile tile_of(const Record& of, u32 rows, bool smoothed) {
    Tile tile;
    tile.left = blockIdx.x * COLUMNS;
    tile.top = blockIdx.y * rows;
    tile.rows = rows;
    const u32 rx = smoothed ? of.radius[0] : 0, ry = smoothed ? of.radius[1] : 0;
    tile.around = shared;
    tile.smooth = shared + 3 * (COLUMNS + 2 * rx) * (rows + 2 * ry);
    return tile;
}

static __device__ __forceinline__ void render(const Input& input, const Record* records, const u32* words, u64 words_bytes,
                                              unsigned char* output, u64 room, u32 pictures, u32 form, u32 rows, Record& of, Statistics& figures) {
    const u32 picture = blockIdx.z;
    if (picture >= pictures) return;
    load_record(of, records + picture);
    if (of.kind == SKIPPED || blockIdx.x * COLUMNS >= of.width || blockIdx.y * rows >= of.height) return;
    const u32 width = of.width, height = of.height, partner = of.partner;
    const u64 target = wide(of.target);
    const float share = of.share;
    const u32 within[4] = {of.within[0], of.within[1], of.within[2], of.within[3]};
    const bool is_mixed = share < 1.f || within[0] < within[2];
    const u32 column = threadIdx.x % COLUMNS, first_row = threadIdx.x / COLUMNS * KEPT;
    const u32 x = blockIdx.x * COLUMNS + column;
    Pixel kept[KEPT];
    for (u32 turn = 0; turn < (is_mixed ? 2u : 1u); turn++) {
        if (turn == 1) {
            __syncthreads();
            load_record(of, records + partner);
        }
        const u64 word = (u64)WORDS * (turn ? partner : picture);
        if (of.measured < STEPS && 4 * (word + WORDS) <= words_bytes) {
            figures_of(words + word, width * height, of.step[of.measured].kind, figures);
        }
        const bool smoothed = of.around != 0.f;
        const Tile tile = tile_of(of, rows, smoothed);
        prepare(input, of, tile, of.steps, smoothed, figures);
        if (first_row >= rows) continue;
        Pixel pixels[KEPT];
        finished(of, tile, column, first_row, of.steps, smoothed, figures, pixels);
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            const u32 y = tile.top + first_row + k;
            const Pixel pixel = in_units(of, pixels[k], x, y);
            const float part = !is_mixed ? 1.f : is_within(within, x, y) ? 0.f : share;
#pragma unroll
            for (int c = 0; c < 3; c++) {
                if (!is_mixed) kept[k].c[c] = pixel.c[c];
                else if (turn == 0) kept[k].c[c] = part * pixel.c[c];
                else kept[k].c[c] = kept[k].c[c] + (1.f - part) * pixel.c[c];
            }
        }
    }
    const u32 kind = form & 3;
    const bool nhwc = form & 4;
    const u64 plane = (u64)width * height;
#pragma unroll
    for (u32 k = 0; k < KEPT; k++) {
        const u32 y = blockIdx.y * rows + first_row + k;
        if (first_row >= rows || x >= width || y >= height) continue;
        const u64 at = (u64)y * width + x;
#pragma unroll
        for (int c = 0; c < 3; c++) store(output, room, target + (nhwc ? 3 * at + c : c * plane + at), kind, kept[k].c[c]);
    }
}

extern "C" __global__ void __launch_bounds__(256, 3) augment_render(
    const unsigned char* bytes, const float* numbers, const Record* records, const u32* words, unsigned char* output, u64 bytes_length,
    u64 numbers_bytes, u64 words_bytes, u64 room, u32 pictures, u32 form, u32 rows) {
    __shared__ Record of;
    __shared__ Statistics figures;
    const Input input = {bytes, numbers, bytes_length, numbers_bytes / 4};
    render(input, records, words, words_bytes, output, room, pictures, form, rows, of, figures);
}

#include "augment_plain.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) augment_plain(
    const unsigned char* bytes, const float* numbers, const Record* records, const u32* words, unsigned char* output, u64 bytes_length,
    u64 numbers_bytes, u64 words_bytes, u64 room, u32 pictures, u32 form, u32 source_pixels) {
    plain<0>(bytes, bytes_length, records, output, room, pictures, form, source_pixels);
}

extern "C" __global__ void __launch_bounds__(256, 4) augment_blurred(
    const unsigned char* bytes, const float* numbers, const Record* records, const u32* words, unsigned char* output, u64 bytes_length,
    u64 numbers_bytes, u64 words_bytes, u64 room, u32 pictures, u32 form, u32 source_pixels) {
    plain<3>(bytes, bytes_length, records, output, room, pictures, form, source_pixels);
}

extern "C" __global__ void __launch_bounds__(256) augment_measure(
    const unsigned char* bytes, const float* numbers, const Record* records, u32* words, u64 bytes_length, u64 numbers_bytes,
    u32 pictures, u32 rows) {
    __shared__ Record of;
    __shared__ Statistics figures;
    __shared__ u32 histogram[3 * 256];
    __shared__ u64 sum;
    const u32 picture = blockIdx.z;
    if (picture >= pictures) return;
    load_record(of, records + picture);
    if (of.kind == SKIPPED || of.measured >= STEPS || blockIdx.x * COLUMNS >= of.width || blockIdx.y * rows >= of.height) return;
    for (u32 at = threadIdx.x; at < 3 * 256; at += THREADS) histogram[at] = 0;
    if (threadIdx.x == 0) sum = 0;
    const Input input = {bytes, numbers, bytes_length, numbers_bytes / 4};
    const bool smoothed = of.around != 0.f && of.measured >= of.steps_before;
    const Tile tile = tile_of(of, rows, smoothed);
    prepare(input, of, tile, of.measured, smoothed, figures);
    u64 own = 0;
    const u32 column = threadIdx.x % COLUMNS, first_row = threadIdx.x / COLUMNS * KEPT;
    if (first_row < rows) {
        Pixel pixels[KEPT];
        finished(of, tile, column, first_row, of.measured, smoothed, figures, pixels);
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            if (tile.left + column >= of.width || tile.top + first_row + k >= of.height) continue;
            own += (u32)rintf(gray(pixels[k], of.levels) * 65536.f);
#pragma unroll
            for (u32 c = 0; c < 3; c++) atomicAdd(histogram + 256 * c + limit((int)rintf(pixels[k].c[c]), 0, 255), 1u);
        }
    }
    atomicAdd(&sum, own);
    __syncthreads();
    u32* to = words + (u64)WORDS * picture;
    if (threadIdx.x == 0) atomicAdd((u64*)to, sum);
    for (u32 at = threadIdx.x; at < 3 * 256; at += THREADS) {
        if (histogram[at]) atomicAdd(to + 2 + at, histogram[at]);
    }
}
