// Programs of two processes. CUDA must not be initialized before the fork.

#pragma once

#include "program.cuh"
#include <sys/wait.h>
#include <unistd.h>

/// Runs `child` in a process of its own, which may read what `parent` writes; returns the exit code of the program.
template <class Parent, class Child> int two_processes(Parent parent, Child child) {
    int ends[2], status;
    if (pipe(ends) != 0) return 4;
    const pid_t other = fork();
    if (other == 0) {
        close(ends[1]);
        exit(child(ends[0]));
    }
    close(ends[0]);
    parent(ends[1]);
    close(ends[1]);
    waitpid(other, &status, 0);
    return status != 0;
}

template <class T> void tell(int to, const T &value) {
    if (write(to, &value, sizeof value) != sizeof value) exit(4);
}

template <class T> T told(int from) {
    T value;
    if (read(from, &value, sizeof value) != sizeof value) exit(4);
    return value;
}

/// Handles of memory and of an event.
struct Shared {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;

    float *open_memory() const {
        void *opened;
        must(cudaIpcOpenMemHandle(&opened, memory, cudaIpcMemLazyEnablePeerAccess));
        return static_cast<float *>(opened);
    }

    cudaEvent_t open_event() const {
        cudaEvent_t opened;
        must(cudaIpcOpenEventHandle(&opened, event));
        return opened;
    }
};

inline cudaEvent_t new_shared_event() {
    cudaEvent_t event;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    return event;
}
