// Calls the library's two ways of unwinding from many kinds of frames, and fails where they differ.
#ifdef LIBRARY
// Two libraries that differ in this frame's size alone.
extern "C" void call(void (*probe)()) {
    volatile char place[LIBRARY];
    place[1] = 1;
    probe();
    place[2] = 1;
}
#else
#include <alloca.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <atomic>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <stdlib.h>
#include <unwind.h>
#include <vector>

extern "C" size_t fast(uintptr_t *into, size_t len);
extern "C" size_t slow(uintptr_t *into, size_t len);
extern "C" bool is_in(uintptr_t pc, const char *path);

#define NOINLINE __attribute__((noinline, noclone))
static std::atomic<long> unwound;

// Stands before libgcc's, and counts.
extern "C" _Unwind_Reason_Code _Unwind_Backtrace(_Unwind_Trace_Fn frame, void *found) {
    static auto real = (decltype(&_Unwind_Backtrace))dlsym(RTLD_NEXT, "_Unwind_Backtrace");
    unwound++;
    return real(frame, found);
}

static const char *section = "";
static uintptr_t last[8];

NOINLINE void probe() {
    uintptr_t by_rule[8] = {}, by_table[8] = {};
    size_t a = fast(by_rule, 8), b = slow(by_table, 8);
    // The two calls lie at different places of this function.
    if (a != b || a < 2 || memcmp(by_rule + 1, by_table + 1, sizeof by_rule - sizeof *by_rule)) {
        fprintf(stderr, "%s: %zu and %zu frames\n", section, a, b);
        for (int i = 0; i < 8; i++) fprintf(stderr, "  %#lx %#lx\n", by_rule[i], by_table[i]);
        _exit(1);
    }
    memcpy(last, by_rule, sizeof last);
}

NOINLINE void recurse(int depth) {
    if (depth > 0) recurse(depth - 1); else probe();
    asm volatile("");
}
NOINLINE void variable(int bytes) {
    volatile char *place = (volatile char *)alloca(bytes);
    place[0] = 1;
    probe();
    place[bytes - 1] = 2;
}
NOINLINE int aligned(int a, int b, int c, int d, int e, int f, int g, int h) {
    alignas(64) volatile char place[64];
    place[a] = b + c + d + e + f;
    volatile char *more = (volatile char *)alloca(a + 10);
    more[0] = 1;
    probe();
    return place[a] + g + h;
}
NOINLINE void huge(int at) {
    volatile char place[100000];
    place[at] = 1;
    probe();
    place[at] = 2;
}
NOINLINE int early(int x, void (*f)(int)) {
    if (x == 0) return 1;
    int y = x * 3, z = x * 5, w = x * 7;
    f(y); f(z); f(w);
    return y + z + w;
}
NOINLINE void thrower(int x) {
    try {
        if (x) throw x;
    } catch (int) {
        probe();
    }
}
static int compare(const void *, const void *) { probe(); return 0; }
static void on_signal(int) { probe(); }

static long slow_calls(const char *name, void (*run)()) {
    section = name;
    run();
    run();
    long before = unwound;
    for (int i = 0; i < 100; i++) run();
    return unwound - before;
}
// Each probe unwinds once by itself.
static void expect(const char *name, void (*run)(), long probes, bool fast_too) {
    long calls = slow_calls(name, run);
    if (calls != (fast_too ? 100 : 200) * probes) { fprintf(stderr, "%s: %ld calls of the unwinder\n", name, calls); _exit(1); }
}
static ucontext_t main_context, fiber_context;
static char fiber_stack[1 << 16], signal_stack[1 << 16];
static void on_fiber() { probe(); swapcontext(&fiber_context, &main_context); }

int main(int, char **argv) {
    expect("recursion", [] { for (int i = 0; i < 20; i++) recurse(i); }, 20, true);
    expect("alloca", [] { for (int i = 1; i < 2000; i += 100) variable(i); }, 20, true);
    expect("alignment", [] { for (int i = 0; i < 20; i++) aligned(i, 1, 2, 3, 4, 5, 6, 7); }, 20, true);
    expect("a large frame", [] { huge(7); }, 1, true);
    expect("branches", [] { early(2, [](int) { probe(); }); }, 3, true);
    expect("a handler of exceptions", [] { thrower(3); }, 1, true);
    expect("a call from libc", [] { int two[2] = {1, 2}; qsort(two, 2, sizeof(int), compare); }, 1, true);
    expect("threads", [] {
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; i++) threads.emplace_back([i] { recurse(i); variable(i + 1); });
        for (auto &thread : threads) thread.join();
    }, 16, true);

    uintptr_t first[8];
    section = "two places of a function";
    for (int round = 0; round < 2; round++) {
        probe(); memcpy(first, last, sizeof first);
        probe();
        if (first[1] == last[1] || first[2] != last[2]) { fprintf(stderr, "%s\n", section); return 1; }
    }

    signal(SIGUSR1, on_signal);
    expect("a signal", [] { raise(SIGUSR1); }, 1, false);
    stack_t stack = {signal_stack, 0, sizeof signal_stack};
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, nullptr);
    expect("a signal on its own stack", [] { raise(SIGUSR2); }, 1, false);
    expect("a fiber", [] {
        getcontext(&fiber_context);
        fiber_context.uc_stack = {fiber_stack, 0, sizeof fiber_stack};
        makecontext(&fiber_context, on_fiber, 0);
        swapcontext(&main_context, &fiber_context);
    }, 1, false);

    // Two libraries, one after the other, as a rule in one place, whose frames differ in size.
    for (int i = 0; i < 2; i++) {
        section = argv[i + 1];
        void *library = dlopen(argv[i + 1], RTLD_NOW);
        auto call = (void (*)(void (*)()))dlsym(library, "call");
        for (int round = 0; round < 3; round++) call(probe);
        if (!is_in(last[0], "/proc/self/exe") || !is_in(last[1], argv[i + 1]) || is_in(last[1], "/proc/self/exe")) {
            fprintf(stderr, "a wrong module for %s\n", section);
            return 1;
        }
        dlclose(library);
    }
}
#endif
