// Two pieces of physical memory are mapped side by side (cuMemMap); a kernel writes across both. Racy, another stream
// reads the last byte written.
// expect: error RAW
// flags: -lcuda

#include "exact.cuh"
#include <cuda.h>

static void need(CUresult result) { needs(result == CUDA_SUCCESS, "virtual memory management"); }

int main(int count, char **) {
    const bool repaired = count > 1;
    auto *sum = memory_of<unsigned>(4);
    CUmemAllocationProp on_device = {};
    on_device.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    on_device.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access = {on_device.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t each;
    CUdeviceptr at;
    CUmemGenericAllocationHandle piece;
    need(cuMemGetAllocationGranularity(&each, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    need(cuMemAddressReserve(&at, 2 * each, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        need(cuMemCreate(&piece, each, &on_device, 0));
        need(cuMemMap(at + i * each, each, 0, piece, 0));
        need(cuMemSetAccess(at + i * each, each, &access, 1));
    }
    auto *values = reinterpret_cast<uint8_t *>(at), *end = values + each + 1001;
    cudaStream_t a = new_stream(), b = new_stream();
    must(cudaMemset(values, 0, 2 * each));
    must(cudaDeviceSynchronize());
    races(end - 1, 1);

    fill_bytes<<<8, THREADS, 0, a>>>(end - 2002, 2002, 1);                     // first
    add_up<uint8_t><<<8, THREADS, 0, b>>>(sum, repaired ? end : end - 1, 100); // second
    must(cudaGetLastError());
    return finish_bytes(values, 2 * each);
}
