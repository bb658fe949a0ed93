// A program whose host touches memory that a copy in flight uses: `host CASE`. With a further argument it waits for the copy
// before that. Prints how many bytes are wrong. A comment of one word at the end of a line names the line for the tests.

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

static CUstream stream;
static CUdeviceptr device;
static int repaired;
static unsigned char *own;
static volatile int faults;

static void upload(const void *from, size_t bytes) {
    MUST(cuMemcpyHtoDAsync_v2(device, from, bytes, stream)); // upload
}

static void download(void *to) {
    MUST(cuMemcpyDtoHAsync_v2(to, device, BYTES, stream)); // download
}

static void batch(const void *source, size_t bytes, unsigned order) {
    CUdeviceptr from = (uintptr_t)source;
    CUmemcpyAttributes attributes = {order};
    size_t first_of = 0;
    MUST(cuMemcpyBatchAsync_v2(&device, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // batch
}

static void wait_if_repaired(void) {
    if (repaired) MUST(cuStreamSynchronize(stream));
}

__attribute__((noinline)) static void upload_local(unsigned order) {
    unsigned char local[256];
    memset(local, 1, sizeof local);
    batch(local, sizeof local, order);
    wait_if_repaired();
}

__attribute__((noinline)) static int use_stack(void) {
    volatile unsigned char other[8192];
    for (int i = 0; i < 8192; i++) other[i] = 2;
    return other[17];
}

static unsigned char *mapped(void *at, int flags) {
    return mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

// The fault of the program itself, and no other.
static void on_fault(int signal, siginfo_t *info, void *context) {
    if (info->si_addr != own || mprotect(own, BYTES, PROT_READ | PROT_WRITE) != 0) _exit(72);
    faults++;
}

// In the order of the stream, so after the upload.
static void refill_by_function(void *at) {
    ((unsigned char *)at)[17] = 2;
}

int main(int count, char **arguments) {
    const char *what = arguments[1];
    repaired = count > 2;
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, NON_BLOCKING));
    MUST(cuMemAlloc_v2(&device, BYTES));
    unsigned char *pinned, *heap = malloc(BYTES), *pages = mapped(NULL, 0), *aligned = aligned_alloc(BYTES, BYTES);
    MUST(cuMemHostAlloc((void **)&pinned, BYTES, 0));
    unsigned char *all[] = {pinned, heap, pages, aligned};
    for (int i = 0; i < 4; i++) memset(all[i], 1, BYTES);
    size_t arrived = BYTES;
    int wrong = 0;

    if (strcmp(what, "refill") == 0) {
        upload(pinned, BYTES);
        wait_if_repaired();
        pinned[17] = 2; // refill
    } else if (strcmp(what, "early") == 0) {
        upload(pinned, BYTES);
        MUST(cuStreamSynchronize(stream));
        pinned[17] = 0;
        download(pinned);
        wait_if_repaired();
        wrong = pinned[17] != 1; // early
    } else if (strcmp(what, "read") == 0) {
        int ends[2];
        memset(heap, 2, BYTES);
        if (pipe(ends) != 0 || write(ends[1], heap, BYTES) != BYTES) return 71;
        upload(pinned, BYTES);
        wait_if_repaired();
        if (read(ends[0], pinned, BYTES) != BYTES) return 71; // read
    } else if (strcmp(what, "registered") == 0) {
        MUST(cuMemHostRegister_v2(aligned, BYTES, 0));
        upload(aligned, BYTES);
        wait_if_repaired();
        if (repaired) MUST(cuMemHostUnregister(aligned));
        free(aligned); // registered
    } else if (strcmp(what, "part") == 0) {
        arrived = 512;
        upload(pinned + 1024, arrived);
        wait_if_repaired();
        pinned[1024 + 17] = 2;
    } else if (strcmp(what, "neighbours") == 0) {
        arrived = 512;
        upload(pinned + 1024, arrived);
        wait_if_repaired();
        pinned[1023] = pinned[1536] = 2;
    } else if (strcmp(what, "columns") == 0) {
        arrived = 4 * 512;
        CUDA_MEMCPY2D left = {.srcKind = 1, .srcHost = pinned, .srcPitch = 1024, .dstKind = 2, .dstDevice = device};
        left.dstPitch = left.width = 512;
        left.height = 4;
        MUST(cuMemcpy2DAsync_v2(&left, stream));
        wait_if_repaired();
        pinned[600] = pinned[2600] = 2;
    } else if (strcmp(what, "free") == 0) {
        batch(heap, BYTES, IN_STREAM_ORDER);
        wait_if_repaired();
        free(heap); // free
    } else if (strcmp(what, "realloc") == 0) {
        batch(heap, BYTES, AT_ANY_TIME);
        wait_if_repaired();
        heap = realloc(heap, 64 * BYTES); // realloc
    } else if (strcmp(what, "heap") == 0) {
        batch(heap, BYTES, IN_STREAM_ORDER);
        wait_if_repaired();
        heap[17] = 2;
    } else if (strcmp(what, "loop") == 0) {
        CUdeviceptr first = device;
        batch(heap, BYTES, IN_STREAM_ORDER);
        wait_if_repaired();
        heap[17] = 2;
        MUST(cuMemAlloc_v2(&device, BYTES));
        batch(heap, BYTES, IN_STREAM_ORDER);
        device = first;
    } else if (strcmp(what, "function") == 0) {
        upload(pinned, BYTES);
        MUST(cuLaunchHostFunc(stream, refill_by_function, pinned));
    } else if (strcmp(what, "unmap") == 0) {
        batch(pages, BYTES, IN_STREAM_ORDER);
        wait_if_repaired();
        munmap(pages, BYTES); // unmap
        mapped(pages, MAP_FIXED);
    } else if (strcmp(what, "stack") == 0) {
        arrived = 256;
        upload_local(IN_STREAM_ORDER);
        use_stack();
    } else if (strcmp(what, "call") == 0) {
        arrived = 256;
        upload_local(DURING_CALL);
        use_stack();
        batch(heap, BYTES, DURING_CALL);
        free(heap);
        batch(pages, BYTES, DURING_CALL);
        munmap(pages, BYTES);
    } else if (strcmp(what, "fork") == 0) {
        int status = 1;
        upload(pinned, BYTES);
        wait_if_repaired();
        if (fork() == 0) {
            pinned[17] = 2;
            _exit(0);
        }
        if (wait(&status) < 0 || status != 0) return 73;
    } else if (strcmp(what, "handler") == 0) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
        own = mapped(NULL, 0);
        if (mprotect(own, BYTES, PROT_NONE) != 0 || sigaction(SIGSEGV, &action, NULL) != 0) return 74;
        upload(pinned, BYTES);
        *(volatile unsigned char *)own = 1;
        wait_if_repaired();
        pinned[17] = 2; // handler
        if (faults != 1) return 75;
    }
    MUST(cuStreamSynchronize(stream));
    unsigned char back[BYTES];
    MUST(cuMemcpyDtoH_v2(back, device, arrived));
    for (size_t i = 0; i < arrived; i++) wrong += back[i] != 1;
    printf("%d wrong\n", wrong);
    return 0;
}
