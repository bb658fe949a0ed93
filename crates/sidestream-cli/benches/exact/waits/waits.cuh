// Correct programs of several streams, of which `mutate.py` takes out one wait at a time.

#pragma once

#include "../exact.cuh"

static int waits_made = 0;

/// Returns whether this is the wait, counted from 0 as they are made, that the environment takes out. With -1 the
/// program only says at its end how many it made.
inline bool is_taken_out() {
    static const char *taken = getenv("WITHOUT_WAIT");
    if (waits_made == 0 && taken) atexit([] { fprintf(stderr, "waits %d\n", waits_made); });
    return waits_made++ == (taken ? atoi(taken) : -1);
}

/// Makes a call that waits, unless it is taken out.
#define WAIT(call)                                                                                                     \
    do {                                                                                                               \
        if (!is_taken_out()) must(call);                                                                               \
    } while (0)

/// Returns an event that was just recorded in a stream.
inline cudaEvent_t recorded(cudaStream_t stream) {
    cudaEvent_t event = new_event();
    must(cudaEventRecord(event, stream));
    return event;
}
