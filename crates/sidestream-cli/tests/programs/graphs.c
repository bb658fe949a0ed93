// Graphs that are captured or built node by node, and launched; with `repaired`, nothing races.

#include "cuda.h"

static const char *const SCALE = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                 ".visible .entry _Z5scalePfPKf(.param .u64 a, .param .u64 b) { ret; }\n";

static CUcontext context;
static CUstream a, b;
static CUevent forked, joined;
static CUdeviceptr in, out;
static CUfunction scale;
static void *host;

static void wait_for(CUstream stream, CUstream source, CUevent event) {
    MUST(cuEventRecord(event, source));
    MUST(cuStreamWaitEvent(stream, event, 0));
}

static void launch(CUdeviceptr to, CUdeviceptr from, CUstream stream) {
    void *parameters[] = {&to, &from};
    MUST(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static CUgraphExec executable(CUgraph graph) {
    CUgraphExec exec;
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

// A memset and a kernel, the one after the other.
static CUgraphExec captured(void) {
    CUgraph graph;
    MUST(cuStreamBeginCapture_v2(a, 0));
    MUST(cuMemsetD8Async(out, 0, BYTES, a));
    launch(out, in, a);
    MUST(cuStreamEndCapture(a, &graph));
    return executable(graph);
}

// Two branches, of which the second clears what the first writes, or another part of the memory.
static CUgraphExec forks(size_t offset) {
    CUgraph graph;
    MUST(cuStreamBeginCapture_v2(a, 0));
    launch(in, out, a);
    wait_for(b, a, forked);
    MUST(cuMemsetD8Async(out, 0, BYTES / 2, a));
    MUST(cuMemsetD8Async(out + offset, 1, BYTES / 2, b));
    wait_for(a, b, joined);
    launch(out, in, a);
    MUST(cuStreamEndCapture(a, &graph));
    return executable(graph);
}

// Two memsets of `out` and a kernel that reads it, with as many dependencies.
static CUgraph built(size_t dependencies, CUdeviceptr at) {
    CUgraph graph;
    CUgraphNode nodes[3];
    CUDA_MEMSET_NODE_PARAMS fill = {at, 0, 0, 1, BYTES, 1};
    void *parameters[] = {&at, &at};
    CUDA_KERNEL_NODE_PARAMS reads = {scale, {1, 1, 1}, {32, 1, 1}, 0, parameters, NULL, NULL, context};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemsetNode(&nodes[0], graph, NULL, 0, &fill, context));
    MUST(cuGraphAddMemsetNode(&nodes[1], graph, nodes, dependencies, &fill, context));
    MUST(cuGraphAddKernelNode_v2(&nodes[2], graph, nodes, 2 * dependencies, &reads));
    return graph;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    int repaired = count > 2;
    CUmodule module;
    long long result[3];
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&a, NON_BLOCKING));
    MUST(cuStreamCreate(&b, NON_BLOCKING));
    MUST(cuEventCreate(&forked, 2));
    MUST(cuEventCreate(&joined, 2));
    MUST(cuMemAlloc_v2(&in, BYTES));
    MUST(cuMemAlloc_v2(&out, BYTES));
    MUST(cuMemHostAlloc(&host, BYTES, 0));
    MUST(cuModuleLoadData(&module, SCALE));
    MUST(cuModuleGetFunction(&scale, module, "_Z5scalePfPKf"));
    if (strcmp(what, "replays") == 0) {
        CUgraphExec first = captured(), second = captured();
        MUST(cuGraphLaunch(first, a));
        if (repaired) wait_for(b, a, forked);
        MUST(cuGraphLaunch(second, b));
    } else if (strcmp(what, "input") == 0) {
        CUgraphExec reads = captured();
        MUST(cuGraphLaunch(reads, a));
        if (repaired) wait_for(b, a, forked);
        MUST(cuMemcpyHtoDAsync_v2(in, host, BYTES, b));
    } else if (strcmp(what, "itself") == 0) {
        CUgraphExec both = captured();
        MUST(cuGraphLaunch(both, a));
        MUST(cuGraphLaunch(both, b));
    } else if (strcmp(what, "forks") == 0) {
        MUST(cuGraphLaunch(forks(repaired ? BYTES / 2 : 0), a));
    } else if (strcmp(what, "built") == 0) {
        MUST(cuGraphLaunch(executable(built(repaired, out)), a));
    } else if (strcmp(what, "update") == 0) {
        CUgraphExec fills = executable(built(1, in));
        CUgraph other = built(1, out);
        if (repaired) MUST(cuGraphExecUpdate_v2(fills, other, result));
        MUST(cuGraphLaunch(fills, a));
        MUST(cuMemcpyDtoHAsync_v2(host, in, BYTES, b));
    }
    MUST(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
