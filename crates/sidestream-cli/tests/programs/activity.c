// With CUPTI defined, a library that stands in for CUPTI: it hands out the records that the program states. Otherwise the
// program: a loop of NVTX ranges with a pageable upload, two kernels, and a wait for the stream.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MEMCPY = 1, DRIVER = 4, RUNTIME = 5, DEVICE = 8, KERNEL = 10, SYNC = 38 };

#ifdef CUPTI

static uint64_t now = 1000000;
static uint32_t enabled[64];
static uint8_t *buffer;
static size_t size, used;
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);

int cuptiActivityRegisterCallbacks(void *asks, void *gets) { return request = asks, complete = gets, 0; }
int cuptiActivityEnable(uint32_t kind) { return enabled[kind] = 1, 0; }
int cuptiActivityDisable(uint32_t kind) { return enabled[kind] = 0; }
int cuptiActivityEnableDriverApi(uint32_t call, uint8_t enable) { return enabled[DRIVER] |= enable && call == 307, 0; }
int cuptiGetTimestamp(uint64_t *time) { return *time = now, 0; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) { return *dropped = 3, 0; }

int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    *subscriber = &now;
    return getenv("TAKEN") ? 39 : 0;
}

int cuptiSubscribe_v2(void **subscriber, void *callback, void *data, void **terms) {
    strcpy(terms[2], "CUPTI for another");
    return 39;
}

int cuptiGetCallbackName(int domain, uint32_t call, const char **name) {
    if (domain == 1 && call == 307) return *name = "cuLaunchKernel", 0;
    static const char *const NAMES[] = {"cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaGetDevice_v3020"};
    return domain == 2 && call >= 1 && call <= 4 ? (*name = NAMES[call - 1], 0) : 1;
}

int cuptiActivityFlushAll(uint32_t forced) {
    uint8_t *full = buffer;
    buffer = NULL;
    if (full) complete(NULL, 0, full, size, used);
    return 0;
}

// All records have the size of the largest one.
int cuptiActivityGetNextRecord(uint8_t *from, size_t valid, uint8_t **record) {
    *record = *record ? *record + 248 : from;
    return *record < from + valid ? 0 : 12;
}

// Hands out a record with these pairs of an offset and a number of 4 bytes.
void record(uint32_t kind, uint64_t time, const uint32_t (*fields)[2], int count, int times_at, uint64_t from, uint64_t to) {
    now = time;
    if (!enabled[kind]) return;
    size_t most;
    if (!buffer) request(&buffer, &size, &most), used = 0;
    uint8_t *at = memset(buffer + used, 0, 248);
    used += 248;
    memcpy(at, &kind, 4);
    for (int i = 0; i < count; i++) memcpy(at + fields[i][0], &fields[i][1], 4);
    memcpy(at + times_at, (uint64_t[]){from, to}, 16);
    if (kind == KERNEL) memcpy(at + 104, (const char *[]){"_Z5scalePfPKf"}, 8);
}

#else

int cuInit(unsigned flags);
void record(uint32_t kind, uint64_t time, const uint32_t (*fields)[2], int count, int times_at, uint64_t from, uint64_t to);
#define RECORD(kind, time, at, from, to, ...) \
    record(kind, time, (const uint32_t[][2]){__VA_ARGS__}, sizeof(uint32_t[][2]){__VA_ARGS__} / 8, at, from, to)

static void ignore(void) {}
static void (*push)(const char *) = (void (*)(const char *))ignore, (*pop)(void) = ignore;

// What NVTX's header does in a program: a table of functions that a library may replace.
static int functions(int module, void ***places, unsigned *count) {
    static void *ignored, *table[12];
    for (int i = 0; i < 12; i++) table[i] = &ignored;
    table[9] = &push, table[11] = &pop;
    return *places = table, *count = 12, module == 1;
}
static const void *table(uint32_t number) {
    static const void *exported[2];
    exported[0] = (void *)sizeof exported, exported[1] = (void *)functions;
    return exported;
}

int main(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (library) ((int (*)(const void *(*)(uint32_t)))dlsym(library, "InitializeInjectionNvtx2"))(table);
    if (cuInit(0)) return 1;
    uint32_t thread = syscall(SYS_gettid), number = 0;
    for (int step = 0; step < 20; step++) {
        char name[16];
        sprintf(name, "step %d", step);
        push(name);
        uint64_t t = 2000000 + 600000 * step;
        RECORD(MEMCPY, t, 16, t + 5000, t + 405000, {4, 1 | 1 << 8 | 3 << 16}, {8, 1 << 22}, {36, 1}, {40, 7}, {44, ++number});
        RECORD(RUNTIME, t + 410000, 8, t, t + 410000, {4, 1}, {28, thread}, {32, number});
        for (int i = 0; i < 2; i++) {
            uint64_t u = t + 420000 + 20000 * i;
            RECORD(DRIVER, u, 8, u + 1000, u + 4000, {4, 307}, {28, thread}, {32, ++number});
            RECORD(RUNTIME, u, 8, u, u + 5000, {4, 2}, {28, thread}, {32, number});
            RECORD(KERNEL, u, 16, u + 8000, u + 27000, {44, 1}, {48, 7}, {52, 64}, {56, 1}, {60, 1}, {64, 256}, {68, 1}, {72, 1}, {92, number});
        }
        RECORD(RUNTIME, t, 8, t + 461000, t + 462000, {4, 4}, {28, thread}, {32, ++number});
        RECORD(SYNC, t, 8, t + 465000, t + 468000, {4, 3}, {24, ++number}, {28, 1}, {32, 7});
        RECORD(RUNTIME, t + 600000, 8, t + 464000, t + 470000, {4, 3}, {28, thread}, {32, number});
        pop();
    }
    puts("the program has ended");
    return 0;
}

#endif
