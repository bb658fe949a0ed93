// A probe of `--exact` without NVIDIA's library: it hears by the functions of CUPTI that are in the program.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int site;
    const char *name;
    const uint64_t *arguments;
} Data;

typedef struct {
    const char *patches, *only;
    uint32_t ids_len;
    void (*heard)(void *, int domain, uint32_t id, const void *data);
    void (*write)(uint32_t tag, const uint64_t *words, size_t len);
    const uint16_t *ids;
} Calls;

int cuptiSubscribe(uint64_t *handle, void (*callback)(void *, int, uint32_t, const void *), void *data);
int cuptiEnableCallback(uint32_t on, uint64_t handle, int domain, uint32_t call);

enum { LAUNCH_KERNEL = 307, LAUNCH_GRAPH = 514, CAPTURED = 0x52, RUNTIME = 4096, ADD_CALLBACK = 197 };
enum { CALL = 1, TOUCHED = 19, MAP = 21 };

static const Calls *calls;
static uint64_t pairs[64], number;
static size_t count;

static void launches(uint64_t node) {
    pairs[2 * count] = node;
    pairs[2 * count++ + 1] = ++number;
}

static void heard(void *user, int domain, uint32_t id, const void *data) {
    const Data *call = data;
    if (call->site == 0 && id == LAUNCH_KERNEL) launches(0xbad);
    calls->heard(NULL, domain, id, data);
    if (call->site == 0 && id == LAUNCH_KERNEL && call->arguments[5] != CAPTURED) launches(0);
    if (call->site == 0 && id == LAUNCH_GRAPH) {
        launches(7);
        launches(8);
    }
}

const char *sidestream_exact_begin(const Calls *given) {
    uint64_t handle;
    int has_runtime = 0;
    calls = given;
    if (strcmp(calls->only, "nothing") == 0) return "it is asked not to";
    if (cuptiSubscribe(&handle, heard, NULL) != 0) return "no subscription";
    for (uint32_t i = 0; i < calls->ids_len; i++) {
        has_runtime |= calls->ids[i] == RUNTIME + ADD_CALLBACK;
        if (calls->ids[i] < RUNTIME) cuptiEnableCallback(1, handle, 1, calls->ids[i]);
    }
    return has_runtime ? NULL : "no calls of the runtime";
}

// The pairs of one thread, since the programs launch from one.
size_t sidestream_exact_launched(uint64_t *to, size_t room) {
    size_t some = count;
    memcpy(to, pairs, 16 * count);
    count = 0;
    return some;
}

size_t sidestream_exact_variables(uint64_t *to, size_t room) {
    static size_t left = 1;
    if (left > room || left == 0) return 0;
    to[0] = 0xabc000;
    to[1] = 64;
    return left--;
}

static void *tells(void *nothing) {
    const uint64_t touched[] = {number, strlen(calls->only), strlen(calls->patches)}, forged[] = {0xbad, 0, 0, 0, 0};
    calls->write(CALL, forged, 5);
    calls->write(MAP, forged, 5);
    calls->write(TOUCHED, touched, 3);
    return NULL;
}

void sidestream_exact_pass() {
    const uint64_t passed[] = {99, 0, 0};
    calls->write(TOUCHED, passed, 3);
}

void sidestream_exact_end(uint32_t milliseconds) {
    pthread_t thread;
    pthread_create(&thread, NULL, tells, NULL);
    pthread_join(thread, NULL);
}
