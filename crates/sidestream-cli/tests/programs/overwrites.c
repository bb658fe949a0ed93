// Overwrites the ring in which its calls are written, and goes on: it must not wait for a reader.

#include "cuda.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static int ring;

// All after the header, again and again: a reader may have read all calls that were written before.
static void *overwrite(void *_) {
    static char bytes[65536];
    memset(bytes, 0xff, sizeof bytes);
    for (;;)
        for (long at = 4096; at < 4096 + (16 << 20); at += sizeof bytes)
            if (pwrite(ring, bytes, sizeof bytes, at) != sizeof bytes) return _;
}

int main(void) {
    CUcontext context;
    CUstream stream;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, NON_BLOCKING));
    const char *folder = getenv("SIDESTREAM_RINGS");
    DIR *entries = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(entries))) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        ring = open(path, O_WRONLY);
        pthread_t other;
        if (pthread_create(&other, NULL, overwrite, NULL)) return 71;
    }
    // More than the ring holds.
    for (int i = 0; i < 600000; i++) MUST(cuStreamSynchronize(stream));
    printf("done\n");
    return 0;
}
