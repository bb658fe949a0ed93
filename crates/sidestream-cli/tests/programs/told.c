// A program that tells of calls that no driver executes, as CUPTI would: some that the stand-in lacks. With `-shared`, it is the
// library in place of CUPTI and the driver.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Word;
typedef struct {
    int site;
    const char *name;
    const Word *arguments;
    const int *result;
    const char *kernel;
    Word context;
    unsigned context_id;
    Word *word;
    unsigned number;
} Data;
typedef void Heard(void *, int domain, unsigned call, const Data *);

// A call with up to six arguments: its number in CUPTI, then they.
void tell(unsigned call, Word a, Word b, Word c, Word d, Word e, Word f);
#define TELL(...) TELL_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define TELL_(call, a, b, c, d, e, f, ...) tell(call, (Word)(a), (Word)(b), (Word)(c), (Word)(d), (Word)(e), (Word)(f))

#ifdef LIBRARY

static Heard *heard;

int cuptiSubscribe(Word *handle, Heard *callback, void *data) {
    heard = callback;
    *handle = 1;
    return 0;
}

int cuptiSubscribe_v2(Word *handle, Heard *callback, void *data, void *parameters) {
    return cuptiSubscribe(handle, callback, data);
}

int cuptiEnableCallback(unsigned on, Word handle, int domain, unsigned call) { return 0; }

int cuFuncGetParamInfo(Word kernel, size_t number, size_t *offset, size_t *bytes) {
    *offset = 8 * number;
    *bytes = 8;
    return number > 1;
}

int cuStreamGetCaptureInfo_v3(Word stream, int *status, Word *number, Word *graph, const Word **nodes, const Word **edges,
                              size_t *count) {
    static const Word before[] = {0x70, 0x71};
    *status = 1;
    *nodes = before;
    *count = 2;
    return 0;
}

int cuFuncGetName(const char **name, Word kernel) {
    *name = "_Z5scalePfPKf";
    return 0;
}

void tell(unsigned call, Word a, Word b, Word c, Word d, Word e, Word f) {
    const Word arguments[] = {a, b, c, d, e, f, 0, 0};
    const int result = 0;
    Word word = 0;
    Data data = {0, "", arguments, NULL, NULL, 7, 1, &word, 1};
    heard(NULL, 1, call, &data);
    data.site = 1;
    data.result = &result;
    heard(NULL, 1, call, &data);
}

#else

// CUPTI's numbers of calls.
enum {
    CONTEXT_SYNCHRONIZE = 17, EVENT_CREATE = 118, EVENT_RECORD = 119, STREAM_CREATE = 124, STREAM_SYNCHRONIZE = 126,
    MEMSET = 216, MALLOC = 243, DOWNLOAD = 279, STREAM_WAIT_EVENT = 295, BEGIN_CAPTURE = 539, END_CAPTURE = 497,
    LAUNCH_KERNEL = 307, LAUNCH = 514, GRAPH_DESTROY = 517, ADD_DEPENDENCIES = 518, CLONE = 523, ADD_CHILD = 525, ADD_EVENT_RECORD = 589,
    MALLOC_ASYNC = 598, FREE_ASYNC = 600, CAPTURE_INFO = 629, UPDATE_CAPTURE = 631, ADD_ALLOC = 638, ADD_FREE = 639,
    INSTANTIATE = 643, ADD_KERNEL = 689, SET_KERNEL = 691, SET_EXEC_NODE = 714, CAPTURE_TO_GRAPH = 720, ADD_NODE = 723,
};
enum { BYTES = 4096, GRAPH = 0x900, BODY = 0x901, OTHER = 0x902, EXEC = 0x990, KERNEL = 0x100 };

static Word s1 = 0x51, s2 = 0x52, event = 0xe0, a = 0x700000000000, b = 0x700000010000, fresh = 0x700000020000;

// A memset of all of the memory at an address, as `CUgraphNodeParams`.
static const Word *fill(Word at) {
    static Word parameters[32];
    const Word all[32] = {2, 0, at, 0, (Word)1 << 32, BYTES, 1};
    return memcpy(parameters, all, sizeof all);
}

static void add(Word graph, Word node, const Word *after, const Word *parameters) {
    TELL(ADD_NODE, &node, graph, after, 0, after != NULL, parameters);
}

static void wait_for(Word stream, Word source) {
    TELL(EVENT_RECORD, event, source);
    TELL(STREAM_WAIT_EVENT, stream, event);
}

int main(int count, char **arguments) {
    const char *what = arguments[1];
    const int repaired = count > 2;
    void *library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
    ((int (*)(void))dlsym(library, "InitializeInjection"))();
    TELL(STREAM_CREATE, &s1, 1);
    TELL(STREAM_CREATE, &s2, 1);
    TELL(EVENT_CREATE, &event, 2);
    TELL(MALLOC, &a, BYTES);
    TELL(MALLOC, &b, BYTES);
    Word graph = GRAPH, other = OTHER, exec = EXEC, node = 7;
    const Word first = 1, second = 2;
    const Word *const to_a[] = {&a, &a}, *const to_b[] = {&b, &b};
    if (strcmp(what, "launches") == 0) {
        TELL(BEGIN_CAPTURE, s2, 0);
        TELL(LAUNCH_KERNEL, KERNEL, 0, 0, 0, 0, s2);
    } else if (strcmp(what, "body") == 0) {
        const Word bodies[] = {BODY}, either[32] = {13, 0, 0x77, (Word)1 << 32, (Word)bodies};
        const Word reads[32] = {0, 0, KERNEL, 0, 0, 0, 0, (Word)to_a};
        add(GRAPH, 9, NULL, either);
        add(BODY, 1, NULL, fill(a));
        add(BODY, 2, repaired ? &first : NULL, reads);
    } else if (strcmp(what, "conditional") == 0) {
        const Word bodies[] = {BODY, OTHER}, either[32] = {13, 0, 0x77, (Word)2 << 32, (Word)bodies};
        add(GRAPH, 9, NULL, either);
        TELL(CAPTURE_TO_GRAPH, s1, OTHER);
        TELL(MEMSET, a, 0, BYTES, s1);
        TELL(END_CAPTURE, s1, &other);
    } else if (strcmp(what, "child") == 0) {
        add(OTHER, 1, NULL, fill(a));
        TELL(ADD_CHILD, &node, GRAPH, NULL, 0, OTHER);
        TELL(GRAPH_DESTROY, OTHER);
    } else if (strcmp(what, "clone") == 0) {
        add(OTHER, 1, NULL, fill(a));
        TELL(CLONE, &graph, OTHER);
    } else if (strcmp(what, "kernel") == 0) {
        const Word on_a[9] = {KERNEL, 0, 0, 0, 0, (Word)to_a}, on_b[9] = {KERNEL, 0, 0, 0, 0, (Word)to_b};
        TELL(ADD_KERNEL, &node, GRAPH, NULL, 0, on_a);
        if (repaired) TELL(SET_KERNEL, node, on_b);
        TELL(INSTANTIATE, &exec, GRAPH);
        TELL(LAUNCH, EXEC, s1);
        TELL(MEMSET, a, 0, BYTES, s2);
        return 0;
    } else if (strcmp(what, "alloc") == 0) {
        const Word memory[15] = {[13] = BYTES, [14] = fresh};
        TELL(ADD_ALLOC, &first, GRAPH, NULL, 0, memory);
        add(GRAPH, 2, &first, fill(fresh));
        TELL(ADD_FREE, &node, GRAPH, &second, repaired, fresh);
        TELL(INSTANTIATE, &exec, GRAPH);
        TELL(LAUNCH, EXEC, s1);
        return 0;
    } else if (strcmp(what, "freed") == 0) {
        TELL(BEGIN_CAPTURE, s1, 0);
        TELL(MALLOC_ASYNC, &fresh, BYTES, s1);
        TELL(MEMSET, fresh, 0, BYTES, s1);
        TELL(END_CAPTURE, s1, &graph);
        TELL(INSTANTIATE, &exec, GRAPH);
        for (int i = 0; i < 2; i++) {
            TELL(LAUNCH, EXEC, s1);
            if (repaired) wait_for(s2, s1);
            TELL(FREE_ASYNC, fresh, s2);
            if (repaired) wait_for(s1, s2);
        }
        return 0;
    } else if (strcmp(what, "event") == 0) {
        add(GRAPH, 1, NULL, fill(a));
        TELL(ADD_EVENT_RECORD, &node, GRAPH, &first, 1, event);
        TELL(INSTANTIATE, &exec, GRAPH);
        TELL(LAUNCH, EXEC, s1);
        if (repaired) TELL(STREAM_WAIT_EVENT, s2, event);
        TELL(DOWNLOAD, &graph, a, 8, s2);
        return 0;
    } else if (strcmp(what, "info") == 0) {
        Word *where = &graph;
        TELL(BEGIN_CAPTURE, s1, 0);
        TELL(MEMSET, b, 0, BYTES, s1);
        TELL(CAPTURE_INFO, s1, NULL, NULL, where);
        add(GRAPH, 1, NULL, fill(a));
        TELL(UPDATE_CAPTURE, s1, &first, 1, 1);
        TELL(END_CAPTURE, s1, &graph);
    } else if (strcmp(what, "edges") == 0) {
        add(GRAPH, 1, NULL, fill(a));
        add(GRAPH, 2, NULL, fill(a));
        if (repaired) TELL(ADD_DEPENDENCIES, GRAPH, &first, &second, 1);
        TELL(INSTANTIATE, &exec, GRAPH);
        return 0;
    }
    TELL(INSTANTIATE, &exec, GRAPH);
    if (strcmp(what, "clone") == 0 && repaired) TELL(SET_EXEC_NODE, EXEC, 5, fill(b));
    TELL(LAUNCH, EXEC, s1);
    if (strcmp(what, "clone") != 0 && repaired) TELL(STREAM_SYNCHRONIZE, s1);
    TELL(DOWNLOAD, &graph, a, 8, s2);
    TELL(CONTEXT_SYNCHRONIZE, 0);
    return 0;
}

#endif
