// Represents any kernel of a stream program: what it writes depends on what it has read, and it takes a given time.
// One block.

struct Piece {
    unsigned char* at;
    unsigned long long bytes;
};

static __device__ unsigned long long now_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Every bit of a word affects each bit of the result.
static __device__ unsigned long long scramble(unsigned long long x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
    return x ^ (x >> 33);
}

// Reads eight bytes, the first one lowest; beyond the end there are zeros.
static __device__ unsigned long long load(Piece piece, unsigned long long word) {
    const unsigned char* at = piece.at + word * 8;
    const unsigned long long left = piece.bytes - word * 8;
    if (left >= 8 && (unsigned long long)at % 8 == 0) return *(const volatile unsigned long long*)at;
    unsigned long long value = 0;
    for (unsigned k = 0; k < 8 && k < left; k++) {
        value |= (unsigned long long)((const volatile unsigned char*)at)[k] << (k * 8);
    }
    return value;
}

static __device__ void store(Piece piece, unsigned long long word, unsigned long long value) {
    unsigned char* at = piece.at + word * 8;
    const unsigned long long left = piece.bytes - word * 8;
    if (left >= 8 && (unsigned long long)at % 8 == 0) {
        *(unsigned long long*)at = value;
    } else {
        for (unsigned k = 0; k < 8 && k < left; k++) at[k] = (unsigned char)(value >> (k * 8));
    }
}

// Sums over all words and their places, so that it does not matter which thread adds which.
static __device__ unsigned long long sum_of(Piece piece, unsigned long long* total) {
    unsigned long long sum = 0;
    for (unsigned long long i = threadIdx.x; i * 8 < piece.bytes; i += blockDim.x) {
        sum += scramble(load(piece, i) + i * 0x9E3779B97F4A7C15ull);
    }
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    atomicAdd(total, sum);
    __syncthreads();
    sum = *total;
    __syncthreads();
    return sum;
}

// The first `reads` pieces are read and the next `writes` written; the others are unused.
extern "C" __global__ void mix(
    unsigned long long ns, unsigned long long seed, unsigned reads, unsigned writes,
    unsigned char* at0, unsigned long long bytes0, unsigned char* at1, unsigned long long bytes1,
    unsigned char* at2, unsigned long long bytes2, unsigned char* at3, unsigned long long bytes3,
    unsigned char* at4, unsigned long long bytes4, unsigned char* at5, unsigned long long bytes5,
    unsigned char* at6, unsigned long long bytes6, unsigned char* at7, unsigned long long bytes7,
    unsigned char* at8, unsigned long long bytes8, unsigned char* at9, unsigned long long bytes9,
    unsigned char* at10, unsigned long long bytes10, unsigned char* at11, unsigned long long bytes11) {
    const unsigned long long start_ns = now_ns();
    const Piece pieces[12] = {{at0, bytes0}, {at1, bytes1}, {at2, bytes2}, {at3, bytes3},
                              {at4, bytes4}, {at5, bytes5}, {at6, bytes6}, {at7, bytes7},
                              {at8, bytes8}, {at9, bytes9}, {at10, bytes10}, {at11, bytes11}};
    __shared__ unsigned long long total;
    unsigned long long seen = scramble(seed);
    for (unsigned i = 0; i < reads; i++) seen = scramble(seen ^ sum_of(pieces[i], &total)) + pieces[i].bytes;
    // Reads happen at the start of the kernel, and writes at its end.
    while (now_ns() - start_ns < ns) {
    }
    __syncthreads();
    for (unsigned i = reads; i < reads + writes; i++) {
        const Piece piece = pieces[i];
        for (unsigned long long k = threadIdx.x; k * 8 < piece.bytes; k += blockDim.x) {
            store(piece, k, scramble(seen + k));
        }
    }
}
