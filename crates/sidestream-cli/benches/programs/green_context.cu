// Two green contexts share the multiprocessors of a device; the stream of one does not wait for that of the other.
// expect: error RAW
// flags: -lcuda

#include "program.cuh"
#include <cuda.h>

static void need(CUresult result) { needs(result == CUDA_SUCCESS, "green contexts"); }

int main(int count, char **) {
    const bool repaired = count > 1;
    float *in = device_memory(), *out = device_memory();
    CUdevResource all, part[2];
    CUcontext contexts[2];
    CUstream streams[2];
    unsigned groups = 1;
    need(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    need(cuDevSmResourceSplitByCount(part, &groups, &all, &part[1], 0, all.sm.smCount / 2));
    for (int i = 0; i < 2; i++) {
        CUdevResourceDesc resources;
        CUgreenCtx context;
        need(cuDevResourceGenerateDesc(&resources, &part[i], 1));
        need(cuGreenCtxCreate(&context, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        need(cuGreenCtxStreamCreate(&streams[i], context, CU_STREAM_NON_BLOCKING, 0));
        need(cuCtxFromGreenCtx(&contexts[i], context));
    }

    need(cuCtxSetCurrent(contexts[0]));
    must(cudaMemsetAsync(in, 0x3f, BYTES, streams[0])); // first
    if (repaired) order(streams[1], streams[0]);
    need(cuCtxSetCurrent(contexts[1]));
    scale<<<BLOCKS, THREADS, 0, streams[1]>>>(out, in, 2, COUNT); // second
    must(cudaGetLastError());
    for (CUstream stream : streams) must(cudaStreamSynchronize(stream));
    must(cudaSetDevice(0));
    return finish(out);
}
