// `void scale(float *out, const float *in)` reads an upload: `repaired`, it waits for it.

#include "cuda.h"

static const char *const SCALE = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                 ".visible .entry _Z5scalePfPKf(.param .u64 a, .param .u64 b) { ret; }\n";

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    CUcontext context;
    CUstream copies, compute;
    CUevent uploaded;
    CUdeviceptr in, out;
    CUmodule module;
    CUfunction scale;
    void *host;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&copies, NON_BLOCKING));
    MUST(cuStreamCreate(&compute, NON_BLOCKING));
    MUST(cuEventCreate(&uploaded, 2));
    MUST(cuMemAlloc_v2(&in, BYTES));
    MUST(cuMemAlloc_v2(&out, BYTES));
    MUST(cuMemHostAlloc(&host, BYTES, 0));
    MUST(cuModuleLoadData(&module, SCALE));
    MUST(cuModuleGetFunction(&scale, module, "_Z5scalePfPKf"));

    MUST(cuMemcpyHtoDAsync_v2(in, host, BYTES, copies));
    MUST(cuEventRecord(uploaded, copies));
    if (strcmp(how, "repaired") == 0) MUST(cuStreamWaitEvent(compute, uploaded, 0));
    void *parameters[] = {&out, &in};
    MUST(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, compute, parameters, NULL));
    if (strcmp(how, "dies") == 0) abort();
    if (strcmp(how, "fails") == 0) return 7;
    MUST(cuMemcpyDtoHAsync_v2(host, out, BYTES, compute));
    MUST(cuStreamSynchronize(compute));
    printf("done\n");
    return 0;
}
