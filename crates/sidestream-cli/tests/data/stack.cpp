// Launches as compiled CUDA programs do, and prints the modules and addresses of the stack in place of the launch.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <stdio.h>

static const char *program;

extern "C" __attribute__((noinline)) void cudaLaunchKernel() {
    void *stack[16];
    int count = backtrace(stack, 16);
    for (int i = 0; i < count; i++) {
        Dl_info info;
        link_map *module = nullptr;
        dladdr1(stack[i], &info, (void **)&module, RTLD_DL_LINKMAP);
        printf("%s %#lx\n", *module->l_name ? module->l_name : program, (char *)stack[i] - (char *)module->l_addr);
    }
    puts("");
}
extern "C" __attribute__((noinline)) void __device_stub__Z5scalePf(float *) { cudaLaunchKernel(); asm volatile(""); }
__attribute__((noinline)) void scale(float *x) { __device_stub__Z5scalePf(x); asm volatile(""); }

namespace pipeline {
static inline __attribute__((always_inline)) void copy() {
    cudaLaunchKernel(); // in copy
}
template <class T> struct Queue {
    __attribute__((noinline)) void upload(T) {
        copy(); // in upload
        asm volatile("");
    }
};
}

int main(int, char **arguments) {
    program = arguments[0];
    pipeline::Queue<float>().upload(1); // upload in main
    scale(nullptr); // scale in main
    asm volatile("");
}
