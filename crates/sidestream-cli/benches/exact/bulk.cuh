// Bulk copies and tensor copies between global and shared memory, by one thread, in PTX.

#pragma once

#include "exact.cuh"
#include <cuda.h>

inline __device__ unsigned in_shared(const void *at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

/// Prepares a barrier on which the thread waits for this many bytes.
inline __device__ void expect_bytes(uint64_t *barrier, unsigned bytes) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(in_shared(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(in_shared(barrier)), "r"(bytes) : "memory");
}

inline __device__ void wait_for_bytes(uint64_t *barrier) {
    unsigned complete = 0;
    while (!complete)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(complete)
                     : "r"(in_shared(barrier))
                     : "memory");
}

/// Makes what the block has stored in shared memory visible to bulk copies.
inline __device__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

inline __device__ void wait_for_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

inline __device__ void bulk_load(void *to, const void *from, unsigned bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(in_shared(to)),
        "l"(from), "r"(bytes), "r"(in_shared(barrier))
        : "memory");
}

inline __device__ void bulk_store(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(in_shared(from)),
                 "r"(bytes)
                 : "memory");
}

/// Adds words in shared memory to those in global memory.
inline __device__ void bulk_add(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(to),
                 "r"(in_shared(from)), "r"(bytes)
                 : "memory");
}

inline __device__ void tensor_load(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(in_shared(to)),
        "l"(map), "r"(x), "r"(y), "r"(in_shared(barrier))
        : "memory");
}

inline __device__ void tensor_store(const CUtensorMap *map, const void *from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(in_shared(from))
                 : "memory");
}

/// Adds words in shared memory to those of a box.
inline __device__ void tensor_add(const CUtensorMap *map, const void *from, int x, int y) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(in_shared(from))
        : "memory");
}

/// The matrix of the tensor programs: its rows are longer than the tensor is wide, and more follow than it is high.
constexpr int PITCH = 512, WIDTH = 400, HEIGHT = 100, ROWS = 128, BOX_WIDTH = 64, BOX_HEIGHT = 16;
constexpr size_t MATRIX_BYTES = size_t(PITCH) * ROWS * 4, BOX_BYTES = BOX_WIDTH * BOX_HEIGHT * 4;
/// From the first to the last element of the tensor. Tensor stores are not told: all of these may be written.
constexpr size_t TENSOR_BYTES = (size_t(PITCH) * (HEIGHT - 1) + WIDTH) * 4;

/// A box has every row, or only the first of each `row_step` rows.
inline CUtensorMap map_of(void *matrix, unsigned row_step = 1) {
    CUtensorMap map;
    const cuuint64_t size[] = {WIDTH, HEIGHT}, pitch[] = {PITCH * 4};
    const cuuint32_t box[] = {BOX_WIDTH, BOX_HEIGHT}, step[] = {1, row_step};
    const CUresult result = cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, matrix, size, pitch, box,
                                                   step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    needs(result == CUDA_SUCCESS, "tensor maps");
    return map;
}

/// Reads the box at column x and row y.
static __global__ void read_box(unsigned *sum, const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ alignas(128) unsigned box[BOX_WIDTH * BOX_HEIGHT];
    __shared__ uint64_t barrier;
    expect_bytes(&barrier, BOX_BYTES);
    tensor_load(box, &map, x, y, &barrier);
    wait_for_bytes(&barrier);
    *sum = box[0];
}

/// Writes the box at column x and row y.
static __global__ void write_box(const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ alignas(128) unsigned box[BOX_WIDTH * BOX_HEIGHT];
    for (int i = threadIdx.x; i < BOX_WIDTH * BOX_HEIGHT; i += blockDim.x) box[i] = 0x01010101;
    publish();
    if (threadIdx.x > 0) return;
    tensor_store(&map, box, x, y);
    wait_for_stores();
}
