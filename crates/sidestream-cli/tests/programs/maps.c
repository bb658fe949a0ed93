// Launches kernels that have tensor maps among their parameters, and what is like one.

#include "cuda.h"

#include <stdint.h>

static const char *const KERNELS = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                   ".visible .entry small(.param .align 8 .b8 a[120]) { ret; }\n"
                                   ".visible .entry one(.param .u64 a, .param .align 64 .b8 b[128]) { ret; }\n"
                                   ".visible .entry many(.param .align 64 .b8 a[2112]) { ret; }\n";

int main(void) {
    CUcontext context;
    CUdeviceptr at;
    CUmodule module;
    CUfunction kernel;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&at, BYTES));
    MUST(cuModuleLoadData(&module, KERNELS));
    // 32 rows of 64 floats, 256 bytes apart.
    const uint64_t map[16] = {at, (uint64_t)16 << 32 | 0x390, 0, 0, (uint64_t)31 << 32 | 63};
    uint64_t maps[8 + 16 * 16] = {at, 0x390};
    for (int i = 0; i < 16; i++) memcpy(maps + 8 + 16 * i, map, sizeof map);
    maps[1] |= 1 << 19;                   // a kind that is none
    maps[8] = at + 8;                     // not aligned
    maps[8 + 16] = at + BYTES;            // outside all memory
    maps[8 + 32 + 1] |= 0x50;             // six dimensions
    maps[8 + 48 + 2] = 1;                 // a stride too many
    maps[8 + 64 + 5] = 1;                 // a size too many
    for (int i = 5; i < 16; i++) maps[8 + 16 * i] = at + 16 * i;
    void *parameters[] = {maps + 8 + 16 * 5, maps + 8 + 16 * 6}, *all[] = {maps};
    const char *const names[] = {"small", "one", "many"};
    for (int i = 0; i < 3; i++) {
        MUST(cuModuleGetFunction(&kernel, module, names[i]));
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, i < 2 ? parameters : all, NULL));
    }
    MUST(cuCtxSynchronize());
    return 0;
}
