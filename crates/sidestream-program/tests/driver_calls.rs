//! Rules of calls that only programs of the CUDA API make: the checker on racy programs and their repaired twins, judged by the
//! oracle.

use crate::readings::all;

/// R61 to R63: a copy of a batch reads its source when its caller has chosen.
#[test]
fn a_batch_reads_its_source_in_the_chosen_order() {
    all(&[
        (
            "in stream order: the host writes the source too early, pageable or not",
            "",
            "copy_batch, s: s1, from: P, to: A; host_write, buf: P; copy_batch, s: s1, from: H, to: A, source: stream; host_write, buf: H",
            "HOST_WAR P 0 1; HOST_WAR H 2 3",
            "copy_batch, s: s1, from: P, to: A; sync_stream, st: s1; host_write, buf: P",
        ),
        (
            "during the call: earlier work of the stream may still write the source",
            "",
            "kernel, s: s1, w: [A]; copy_batch, s: s1, from: A, to: B, source: during_call",
            "HOST_RAW A 0 1",
            "kernel, s: s1, w: [A]; sync_stream, st: s1; copy_batch, s: s1, from: A, to: B, source: during_call",
        ),
        (
            "during the call: the destination is written in stream order",
            "",
            "copy_batch, s: s1, from: P, to: A, source: during_call; host_write, buf: P; kernel, s: s2, r: [A]",
            "RAW A 0 2",
            "copy_batch, s: s1, from: P, to: A, source: during_call; host_write, buf: P; kernel, s: s1, r: [A]",
        ),
        (
            "at any time: earlier work of the stream may still write the source",
            "",
            "copy_async, s: s1, from: A, to: H; copy_batch, s: s1, from: H, to: B, source: any",
            "RAW H 0 1",
            "copy_async, s: s1, from: A, to: H; copy_batch, s: s1, from: H, to: B",
        ),
        (
            "at any time: a wait of the stream does not help, one of the host does",
            "",
            "kernel, s: s2, w: [A]; wait_stream, s: s1, src: s2; copy_batch, s: s1, from: A, to: B, source: any",
            "RAW A 0 2",
            "kernel, s: s2, w: [A]; sync_stream, st: s2; copy_batch, s: s1, from: A, to: B, source: any",
        ),
        (
            "at any time: until the copy is complete",
            "",
            "copy_batch, s: s1, from: P, to: A, source: any; host_write, buf: P",
            "HOST_WAR P 0 1",
            "copy_batch, s: s1, from: P, to: A, source: any; kernel, s: s1, r: [A]; sync_stream, st: s1; host_write, buf: P",
        ),
        (
            "at any time: the destination is written in stream order",
            "",
            "kernel, s: s2, r: [A]; copy_batch, s: s1, from: P, to: A, source: any",
            "WAR A 0 1",
            "kernel, s: s1, r: [A]; copy_batch, s: s1, from: P, to: A, source: any",
        ),
    ]);
}

/// R64, R65: a stream waits for a value that another wrote; where no write is known that ends the wait, or another process
/// does, the wait may order anything.
#[test]
fn a_wait_for_a_value_or_for_another_process() {
    all(&[
        (
            "the wait is for an earlier value",
            "",
            "write_value, s: s1, at: w, value: 1; kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 2; wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]",
            "RAW A 1 4",
            "write_value, s: s1, at: w, value: 1; kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 2; wait_value, s: s2, at: w, value: 2; kernel, s: s2, r: [A]",
        ),
        (
            "the write comes before the work",
            "",
            "write_value, s: s1, at: w, value: 1; kernel, s: s1, w: [A]; wait_value, s: s2, at: w, value: 1, when: eq; kernel, s: s2, r: [A]",
            "RAW A 1 3",
            "kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1; wait_value, s: s2, at: w, value: 1, when: eq; kernel, s: s2, r: [A]",
        ),
        (
            "a write without a memory barrier",
            "",
            "kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1, unfenced: true; wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]",
            "RAW A 0 3",
            "kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1; wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]",
        ),
        (
            "no write is known that ends the wait",
            "",
            "kernel, s: s1, w: [A]; wait_value, s: s2, at: w, value: 1, when: nor; kernel, s: s2, r: [A]; kernel, s: s3, r: [A]; wait_stream, s: s3, src: s2; kernel, s: s3, w: [A]",
            "RAW A 0 2?; RAW A 0 3; WAW A 0 5?",
            "kernel, s: s1, w: [A]; wait_value, s: s2, at: w, value: 1; wait_stream, s: s2, src: s1; kernel, s: s2, r: [A]",
        ),
        (
            "the write is called after the wait, and before the work",
            "",
            "wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]; write_value, s: s1, at: w, value: 1; kernel, s: s1, w: [A]; kernel, s: s2, r: [A]",
            "WAR A 1 3; RAW A 3 4",
            "wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]; kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1; kernel, s: s2, r: [A]",
        ),
        (
            "the write is called after the wait, and after the other's work",
            "",
            "kernel, s: s1, w: [A]; kernel, s: s3, w: [B]; wait_value, s: s2, at: w, value: 1, when: eq; kernel, s: s2, r: [A, B]; write_value, s: s1, at: w, value: 2; write_value, s: s1, at: w, value: 1",
            "RAW B 1 3?",
            "kernel, s: s1, w: [A]; wait_value, s: s2, at: w, value: 1, when: eq; kernel, s: s2, r: [A]; write_value, s: s1, at: w, value: 1",
        ),
        (
            "a stream, and a thread, wait for another process",
            "",
            "kernel, s: s1, w: [M]; wait_outside, s: s2; kernel, s: s2, r: [M]; wait_outside; host_read, buf: M",
            "RAW M 0 2?; HOST_RAW M 0 4?",
            "kernel, s: s1, w: [M]; wait_outside, s: s2; wait_stream, s: s2, src: s1; kernel, s: s2, r: [M]",
        ),
    ]);
}

/// Two atomic accesses are no race, and neither hides what a plain one beside them conflicts with.
#[test]
fn an_atomic_access_races_with_plain_ones_only() {
    all(&[
        (
            "against a read, a write and a guess",
            "",
            "kernel, s: s1, atomic: [A, B, C]; kernel, s: s2, r: [A], w: [B], may_write: [C]",
            "RAW A 0 1; WAW B 0 1; RAW C 0 1",
            "kernel, s: s1, atomic: [A, B, C]; kernel, s: s2, atomic: [A, B, C]",
        ),
        (
            "after a read, a write and a guess",
            "",
            "kernel, s: s1, r: [A], w: [B], may_write: [C]; kernel, s: s2, atomic: [A, B, C]",
            "WAR A 0 1; WAW B 0 1; WAR C 0 1",
            "kernel, s: s1, r: [A], w: [B], may_write: [C]; wait_stream, s: s2, src: s1; kernel, s: s2, atomic: [A, B, C]",
        ),
        (
            "those of all streams are kept, and what was read and written before",
            "",
            "kernel, s: s1, r: [A]; kernel, s: s2, atomic: [A]; kernel, s: s3, atomic: [A]; memset_async, s: s4, to: A",
            "WAR A 0 1; WAR A 0 2; WAR A 0 3; WAW A 1 3; WAW A 2 3",
            "kernel, s: s1, r: [A]; wait_stream, s: s2, src: s1; wait_stream, s: s3, src: s1; kernel, s: s2, atomic: [A]; kernel, s: s3, atomic: [A]; \
             wait_stream, s: s4, src: s2; wait_stream, s: s4, src: s3; memset_async, s: s4, to: A",
        ),
        (
            "it and a guess of one stream do not hide each other",
            "",
            "kernel, s: s1, atomic: [A]; kernel, s: s1, may_write: [A]; kernel, s: s1, atomic: [A]; kernel, s: s2, atomic: [A]; kernel, s: s3, r: [A]",
            "WAR A 1 3; RAW A 1 4?; RAW A 2 4; RAW A 3 4",
            "kernel, s: s1, atomic: [A]; kernel, s: s2, atomic: [A]; kernel, s: s1, atomic: [A]",
        ),
        (
            "a kernel that reads, too",
            "",
            "kernel, s: s1, r: [A], atomic: [A]; kernel, s: s2, atomic: [A]",
            "WAR A 0 1",
            "kernel, s: s1, r: [B], atomic: [A]; kernel, s: s2, atomic: [A]",
        ),
        (
            "a next owner of the memory",
            "",
            "alloc, buf: A, s: s1; kernel, s: s1, atomic: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, atomic: [B]; kernel, s: s2, atomic: [B]",
            "UAF B 1 5",
            "alloc, buf: A, s: s1; kernel, s: s1, atomic: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; wait_stream, s: s2, src: s1; kernel, s: s1, atomic: [B]; kernel, s: s2, atomic: [B]",
        ),
        (
            "a programmatic launch",
            "",
            "kernel, s: s1, atomic: [A], w: [B]; kernel, s: s1, atomic: [A], r: [B], programmatic: true",
            "RAW B 0 1?",
            "kernel, s: s1, atomic: [A]; kernel, s: s1, atomic: [A], programmatic: true",
        ),
        (
            "a graph",
            "",
            "graph_launch, s: s1, g: g, atomic: [A]; kernel, s: s2, r: [A]",
            "RAW A 0 1",
            "graph_launch, s: s1, g: g, atomic: [A]; kernel, s: s2, atomic: [A]",
        ),
    ]);
}

/// A kernel that receives memory may only read it: a race that needs a write is a warning, and hides no error.
#[test]
fn a_race_that_needs_a_guess_is_a_warning() {
    all(&[
        (
            "against a read, and two of a kind",
            "",
            "kernel, s: s1, may_write: [A]; kernel, s: s2, r: [A], may_write: [B]; kernel, s: s3, may_write: [B]",
            "RAW A 0 1?; RAW B 1 2?",
            "kernel, s: s1, r: [A]; kernel, s: s2, r: [A], w: [B]; kernel, s: s3, r: [C]",
        ),
        (
            "against a certain write, before and after",
            "",
            "memset_async, s: s1, to: A; kernel, s: s2, may_write: [A, B]; memset_async, s: s1, to: B",
            "RAW A 0 1; WAR B 1 2",
            "memset_async, s: s1, to: A; wait_stream, s: s2, src: s1; kernel, s: s2, may_write: [A, B]; wait_stream, s: s1, src: s2; memset_async, s: s1, to: B",
        ),
        (
            "a certain write names the race",
            "",
            "kernel, s: s1, r: [A], may_write: [A]; kernel, s: s2, r: [A], w: [A]",
            "WAR A 0 1",
            "kernel, s: s1, r: [A], may_write: [A]; wait_stream, s: s2, src: s1; kernel, s: s2, r: [A], w: [A]",
        ),
        (
            "a guess between a write and a read",
            "",
            "memset_async, s: s1, to: A; kernel, s: s1, may_write: [A]; kernel, s: s2, r: [A]",
            "RAW A 0 2; RAW A 1 2?",
            "memset_async, s: s1, to: A; kernel, s: s1, may_write: [A]; wait_stream, s: s2, src: s1; kernel, s: s2, r: [A]",
        ),
        (
            "a guess between a read and a write",
            "",
            "kernel, s: s1, r: [A]; kernel, s: s1, may_write: [A]; kernel, s: s1, r: [A]; memset_async, s: s2, to: A",
            "WAR A 1 3; WAR A 2 3",
            "kernel, s: s1, r: [A]; kernel, s: s1, may_write: [A]; kernel, s: s1, r: [A]; wait_stream, s: s2, src: s1; memset_async, s: s2, to: A",
        ),
        (
            "two reads at the same sites as a write and a read are no less certain",
            "",
            "kernel, s: s1, may_write: [A], site: a; kernel, s: s2, r: [A], site: b; kernel, s: s1, w: [A], site: a; wait_stream, s: s1, src: s2; kernel, s: s2, r: [A], site: b",
            "RAW A 0 1?; WAR A 1 2; RAW A 2 4",
            "kernel, s: s1, r: [A], site: a; kernel, s: s2, r: [A], site: b",
        ),
        (
            "the ends of lives are certain",
            "",
            "malloc_async, buf: A, s: s1; kernel, s: s2, may_write: [A]; free_async, buf: A, s: s1",
            "UBA A 0 1; UAF A 1 2",
            "malloc_async, buf: A, s: s1; kernel, s: s1, may_write: [A]; free_async, buf: A, s: s1",
        ),
        (
            "a graph",
            "",
            "graph_launch, s: s1, g: g, may_write: [A]; kernel, s: s2, r: [A]",
            "RAW A 0 1?",
            "graph_launch, s: s1, g: g, may_write: [A]; wait_stream, s: s2, src: s1; kernel, s: s2, r: [A]",
        ),
    ]);
}

/// R32, R67: the driver's pool hands memory on from stream to stream in order; a free or the end of a registration does not
/// wait for those who still use the memory.
#[test]
fn ends_of_memory_that_is_in_use() {
    all(&[
        (
            "registered memory: NVIDIA does not say whether the call waits",
            "",
            "copy_async, s: s1, from: H, to: A; unregister, buf: H",
            "UAF H 0 1?",
            "copy_async, s: s1, from: H, to: A; sync_stream, st: s1; unregister, buf: H",
        ),
        (
            "registered memory, by a thread that is not ordered after the call",
            "",
            "copy_async, s: s1, from: H, to: A; unregister, buf: H, t: b",
            "UAF H 0 1",
            "copy_async, s: s1, from: H, to: A; sync_stream, st: s1, t: b; unregister, buf: H, t: b",
        ),
        (
            "memory of a pool that two streams use",
            "",
            "malloc_async, buf: A, s: s1; wait_stream, s: s2, src: s1; kernel, s: s2, w: [A]; free_async, buf: A, s: s1; malloc_async, buf: A, s: s2; kernel, s: s2, w: [A]",
            "UAF A 2 3",
            "malloc_async, buf: A, s: s1; kernel, s: s1, w: [A]; free_async, buf: A, s: s1; malloc_async, buf: A, s: s2; kernel, s: s2, w: [A]",
        ),
    ]);
}

/// R66: a kernel that is launched programmatically may start before the kernels before it are complete, and may wait itself.
#[test]
fn a_programmatic_launch_may_start_early() {
    all(&[
        (
            "what the kernel before it writes",
            "",
            "kernel, s: s1, w: [A]; kernel, s: s1, r: [A], programmatic: true",
            "RAW A 0 1?",
            "kernel, s: s1, w: [A]; kernel, s: s1, r: [A]",
        ),
        (
            "what a kernel two launches before writes",
            "",
            "kernel, s: s1, w: [A]; kernel, s: s1, w: [B], programmatic: true; kernel, s: s1, r: [A], w: [B], programmatic: true",
            "RAW A 0 2?; WAW B 1 2?",
            "kernel, s: s1, w: [A]; kernel, s: s1, w: [B], programmatic: true; kernel, s: s1, r: [A], w: [B]",
        ),
        (
            "not what comes before that kernel",
            "",
            "kernel, s: s1, w: [A, C]; kernel, s: s1, r: [C]; kernel, s: s1, r: [A], w: [C], programmatic: true",
            "WAR C 1 2?",
            "kernel, s: s1, w: [A, C]; kernel, s: s1, r: [C]; kernel, s: s1, r: [A], w: [B], programmatic: true",
        ),
        (
            "a race that is certain is not hidden",
            "",
            "kernel, s: s2, r: [A]; kernel, s: s1, w: [B]; kernel, s: s1, r: [B], w: [A], programmatic: true",
            "WAR A 0 2; RAW B 1 2?",
            "kernel, s: s2, r: [A]; kernel, s: s1, w: [B]; wait_stream, s: s1, src: s2; kernel, s: s1, r: [B], w: [A], programmatic: true",
        ),
        (
            "a copy before it has to be complete",
            "",
            "kernel, s: s1, w: [A]; kernel, s: s1, w: [A], programmatic: true",
            "WAW A 0 1?",
            "kernel, s: s1, w: [A]; copy_async, s: s1, from: A, to: H; kernel, s: s1, w: [A], programmatic: true; copy_async, s: s1, from: A, to: H",
        ),
    ]);
}
