// Copies many small pieces of pinned host memory into device memory with one launch: the driver takes microseconds
// for each copy, a row of a table costs nanoseconds.
//
// The link to the host has a high latency, so the number of bytes requested before the first arrive determines the
// speed. Each thread requests LOADS times 16 bytes and only then stores any. Reads are always whole 16 bytes,
// whatever the alignment, since the link is the bottleneck. Writes are as wide as the alignment of the target allows.

struct Piece {
    unsigned long long from, to, bytes;
};

static const unsigned LOADS = 8;
static const unsigned long long WORD = 16;

static __device__ __forceinline__ void store(unsigned char* to, uint4 v) {
    const unsigned long long off = (unsigned long long)to & (WORD - 1);
    if (off == 0) {
        __stcs((uint4*)to, v);
    } else if (off % 8 == 0) {
        __stcs((uint2*)to, make_uint2(v.x, v.y));
        __stcs((uint2*)to + 1, make_uint2(v.z, v.w));
    } else {
        const unsigned parts[4] = {v.x, v.y, v.z, v.w};
        if (off % 4 == 0) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) __stcs((unsigned*)to + i, parts[i]);
        } else {
#pragma unroll
            for (unsigned i = 0; i < WORD; i++) to[i] = (unsigned char)(parts[i / 4] >> (i % 4 * 8));
        }
    }
}

// Copies the share of one thread of `threads` that copy the piece together.
static __device__ void copy(Piece piece, unsigned long long thread, unsigned long long threads) {
    const unsigned char* from = (const unsigned char*)piece.from;
    unsigned char* to = (unsigned char*)piece.to;

    // Bytes before the first whole word of the source, whole words, bytes after them.
    unsigned long long head = (0 - piece.from) & (WORD - 1);
    if (head > piece.bytes) head = piece.bytes;
    const unsigned long long words = (piece.bytes - head) / WORD;
    const unsigned long long tail = (piece.bytes - head) % WORD;

    const uint4* word_from = (const uint4*)(from + head);
    unsigned char* word_to = to + head;
    for (unsigned long long at = thread; at < words; at += threads * LOADS) {
        uint4 loaded[LOADS];
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) {
            const unsigned long long word = at + i * threads;
            if (word < words) loaded[i] = __ldcs(word_from + word);
        }
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) {
            const unsigned long long word = at + i * threads;
            if (word < words) store(word_to + word * WORD, loaded[i]);
        }
    }
    for (unsigned long long i = thread; i < head + tail; i += threads) {
        const unsigned long long byte = i < head ? i : words * WORD + i;
        to[byte] = from[byte];
    }
}

// With k times as many blocks as pieces, k blocks copy each piece; any other number of blocks gives the same result.
extern "C" __global__ void gather(const Piece* table, unsigned pieces) {
    if (pieces == 0) return;
    const unsigned shares = gridDim.x < pieces ? 1 : gridDim.x / pieces;
    const unsigned thread = blockIdx.x % shares * blockDim.x + threadIdx.x;
    const unsigned long long threads = (unsigned long long)shares * blockDim.x;
    for (unsigned long long piece = blockIdx.x / shares; piece < pieces; piece += gridDim.x / shares) {
        copy(table[piece], thread, threads);
    }
}

// Copies a single piece, which is passed as arguments: a node of a graph needs no table.
extern "C" __global__ void copy_piece(unsigned long long from, unsigned long long to, unsigned long long bytes) {
    const Piece piece = {from, to, bytes};
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    copy(piece, thread, (unsigned long long)gridDim.x * blockDim.x);
}
