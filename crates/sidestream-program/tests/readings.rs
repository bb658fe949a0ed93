//! Every interpretation of the rules as a racy program and its repaired twin: a checker that always complains would
//! pass the racy programs, and one that never complains would pass the twins.
//!
//! Programs are lists of ops in the format's flow style. The expected findings follow the racy one, as
//! `KIND buffer first second`, with a question mark where CUDA leaves the behaviour open; the twin must be clean.
//! Remarks are ignored.

use crate::checker_oracle::judged;
use crate::oracle::model::judge;
use crate::oracle::prog::Prog;
use sidestream::check::Severity;
use sidestream_program::{Limits, check, parse};

/// Description, declarations, racy program, its findings, and the repaired twin.
type Twins = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

const DEFAULT: &str = "streams: {b: blk, c: blk, d: legacy, v: nb@1, l1: legacy@1, p: ptds}";

#[test]
fn streams_events_and_waits() {
    all(&[
        (
            "R1: one stream is in order, whichever thread feeds it; two are not (R2)",
            "",
            "kernel, s: s1, w: [A]; kernel, s: s2, r: [A]",
            "RAW A 0 1",
            "kernel, s: s1, w: [A]; kernel, s: s1, r: [A], t: b",
        ),
        (
            "R3: nothing starts before its call, and the call does not wait",
            "",
            "kernel, s: s1, r: [H]; host_write, buf: H",
            "HOST_WAR H 0 1",
            "host_write, buf: H; kernel, s: s1, r: [H]",
        ),
        (
            "R4: threads that feed one stream are not ordered by it",
            "",
            "host_write, buf: H; kernel, s: s1, r: [H]; kernel, s: s1, r: [H], t: b; host_write, buf: H, t: b",
            "HOST_WAW H 0 3; HOST_WAR H 2 3",
            "host_write, buf: H; kernel, s: s1, r: [H]; kernel, s: s1, r: [H], t: b; sync_stream, st: s1, t: b; host_write, buf: H, t: b",
        ),
        (
            "R5: a record covers the work that its stream has then",
            "",
            "record, ev: e, s: s1; kernel, s: s1, w: [A]; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
            "RAW A 1 3",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
        ),
        (
            "R5: recording again, also elsewhere, overwrites",
            "",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; record, ev: e, s: s3; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
            "RAW A 0 4",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; record, ev: e, s: s3; kernel, s: s2, r: [A]",
        ),
        (
            "R6: a wait delays later work only",
            "",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; kernel, s: s2, r: [A]; wait, s: s2, ev: e",
            "RAW A 0 2",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
        ),
        (
            "R6: and only of its stream",
            "",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s3, r: [A]",
            "RAW A 0 3",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; wait_stream, s: s3, src: s2; kernel, s: s3, r: [A]",
        ),
        (
            "R7: later records change nothing for a placed wait",
            "",
            "record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s1, w: [A]; record, ev: e, s: s1; kernel, s: s2, r: [A]",
            "RAW A 2 4",
            "record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
        ),
        (
            "R8: an event without a record is complete",
            "",
            "kernel, s: s1, w: [M]; sync_event, ev: e; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: s1, w: [M]; record, ev: e, s: s1; sync_event, ev: e; host_read, buf: M",
        ),
        (
            "R9: a synchronisation with an event covers what was recorded",
            "",
            "record, ev: e, s: s1; kernel, s: s1, w: [M]; sync_event, ev: e; host_read, buf: M",
            "HOST_RAW M 1 3",
            "record, ev: e, s: s1; kernel, s: s1, w: [M]; sync_stream, st: s1; host_read, buf: M",
        ),
        (
            "R9: only the calling thread waits",
            "",
            "kernel, s: s1, w: [M]; sync_stream, st: s1; host_read, buf: M, t: b",
            "HOST_RAW M 0 2",
            "kernel, s: s1, w: [M]; sync_stream, st: s1; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: M, t: b",
        ),
        (
            "R10: not yet proves nothing",
            "",
            "kernel, s: s1, w: [M]; query_stream, st: s1; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: s1, w: [M]; query_stream, st: s1, ready: true; host_read, buf: M",
        ),
        (
            "R10: done covers what the query asked about",
            "",
            "record, ev: e, s: s1; kernel, s: s1, w: [M]; query_event, ev: e, ready: true; host_read, buf: M",
            "HOST_RAW M 1 3",
            "kernel, s: s1, w: [M]; record, ev: e, s: s1; query_event, ev: e, ready: true; host_read, buf: M",
        ),
        (
            "R12: a destroyed event has no record, and placed waits stay",
            "",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; destroy_event, ev: e; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
            "RAW A 0 4",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; destroy_event, ev: e; kernel, s: s2, r: [A]",
        ),
        (
            "R12: nor has one that is created again",
            "",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; create_event, ev: e; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
            "RAW A 0 4",
            "kernel, s: s1, w: [A]; create_event, ev: e; record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s2, r: [A]",
        ),
        (
            "R13: destroying a stream waits for nothing, and its work still runs",
            "",
            "kernel, s: s1, w: [M]; destroy_stream, st: s1; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: s1, w: [M]; destroy_stream, st: s1; sync_device; host_read, buf: M",
        ),
        (
            "R13: a stream that is created again is another one",
            "",
            "kernel, s: s1, w: [M]; destroy_stream, st: s1; create_stream, st: s1; sync_stream, st: s1; host_read, buf: M",
            "HOST_RAW M 0 4",
            "kernel, s: s1, w: [M]; sync_stream, st: s1; destroy_stream, st: s1; create_stream, st: s1; host_read, buf: M",
        ),
        (
            "R50: wait_stream is a snapshot, one way",
            "",
            "kernel, s: s2, r: [A]; wait_stream, s: s2, src: s1; kernel, s: s1, w: [A]",
            "WAR A 0 2",
            "kernel, s: s2, r: [A]; wait_stream, s: s1, src: s2; kernel, s: s1, w: [A]",
        ),
        (
            "an order is transitive",
            "",
            "kernel, s: s1, w: [A]; wait_stream, s: s2, src: s1; record, ev: e, s: s1; wait, s: s3, ev: e; kernel, s: s2, w: [B]; kernel, s: s3, r: [A, B]",
            "RAW B 4 5",
            "kernel, s: s1, w: [A]; wait_stream, s: s2, src: s1; kernel, s: s2, w: [B]; record, ev: e, s: s2; wait, s: s3, ev: e; kernel, s: s3, r: [A, B]",
        ),
    ]);
}

#[test]
fn default_streams_and_devices() {
    all(&[
        (
            "R14: the legacy stream and blocking streams wait for each other",
            DEFAULT,
            "kernel, s: b, w: [A]; kernel, s: c, r: [A]",
            "RAW A 0 1",
            "kernel, s: b, w: [A]; kernel, s: d, w: [Z]; kernel, s: c, r: [A]",
        ),
        (
            "R15: non-blocking streams take no part",
            DEFAULT,
            "kernel, s: d, w: [A]; kernel, s: s1, r: [A]",
            "RAW A 0 1",
            "kernel, s: d, w: [A]; kernel, s: b, r: [A]",
        ),
        (
            "R16: waiting for the legacy stream covers blocking streams only",
            DEFAULT,
            "kernel, s: s1, w: [M]; sync_stream, st: d; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: b, w: [M]; sync_stream, st: d; host_read, buf: M",
        ),
        (
            "R16: waiting for a blocking stream does not cover the legacy stream",
            DEFAULT,
            "kernel, s: d, w: [M]; sync_stream, st: b; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: d, w: [M]; record, ev: e, s: b; sync_stream, st: b; host_read, buf: M",
        ),
        (
            "R10, R16: a query of the legacy stream covers blocking streams only",
            DEFAULT,
            "kernel, s: s1, w: [M]; query_stream, st: d, ready: true; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: p, w: [M]; query_stream, st: d, ready: true; host_read, buf: M",
        ),
        (
            "R17: a record in the legacy stream is an action, asking is none",
            DEFAULT,
            "kernel, s: b, w: [A]; query_stream, st: d; kernel, s: c, r: [A]",
            "RAW A 0 2",
            "kernel, s: b, w: [A]; record, ev: e, s: d; kernel, s: c, r: [A]",
        ),
        (
            "R17: a wait in it delays all blocking streams, and no others",
            DEFAULT,
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: d, ev: e; kernel, s: s2, r: [A]",
            "RAW A 0 3",
            "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: d, ev: e; kernel, s: c, r: [A]",
        ),
        (
            "R8, R17: a wait for an event without a record is no action",
            DEFAULT,
            "kernel, s: b, w: [A]; wait, s: d, ev: e; kernel, s: c, r: [A]",
            "RAW A 0 2",
            "kernel, s: b, w: [A]; record, ev: e, s: b; wait, s: d, ev: e; kernel, s: c, r: [A]",
        ),
        (
            "R18: a per-thread stream is a blocking one, and nothing more",
            DEFAULT,
            "kernel, s: p, w: [A]; kernel, s: b, r: [A]",
            "RAW A 0 1",
            "kernel, s: p, w: [A]; memset_async, s: d, to: Z; kernel, s: b, r: [A]",
        ),
        (
            "R41: a device synchronisation covers one device",
            DEFAULT,
            "kernel, s: v, w: [M]; sync_device; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: v, w: [M]; sync_device, dev: 1; host_read, buf: M",
        ),
        (
            "R41: that of the thread, which another thread does not change",
            DEFAULT,
            "kernel, s: v, w: [M]; set_device, dev: 1, t: b; sync_device; host_read, buf: M",
            "HOST_RAW M 0 3",
            "kernel, s: v, w: [M]; set_device, dev: 1; sync_device; host_read, buf: M",
        ),
        (
            "R42: every device has its own legacy stream",
            DEFAULT,
            "kernel, s: b, w: [A]; kernel, s: l1, w: [Z]; kernel, s: c, r: [A]",
            "RAW A 0 2",
            "kernel, s: b, w: [A]; kernel, s: d, w: [Z]; kernel, s: c, r: [A]",
        ),
        (
            "R40: a wait works across devices",
            DEFAULT,
            "kernel, s: v, w: [A]; kernel, s: s1, r: [A]",
            "RAW A 0 1",
            "kernel, s: v, w: [A]; record, ev: e, s: v; wait, s: s1, ev: e; kernel, s: s1, r: [A]",
        ),
        (
            "R51: request 33 of a pool is request 1, and 32 is not",
            "",
            "pool_get, count: 32, first: x, last: y; kernel, s: x, w: [A]; kernel, s: y, r: [A]",
            "RAW A 1 2",
            "pool_get, count: 33, first: x, last: y; kernel, s: x, w: [A]; kernel, s: y, r: [A]",
        ),
        (
            "R49: one graph never overlaps itself, two do",
            "",
            "graph_launch, s: s1, g: g, w: [A]; graph_launch, s: s2, g: h, w: [A]",
            "WAW A 0 1",
            "graph_launch, s: s1, g: g, w: [A]; graph_launch, s: s2, g: g, w: [A]",
        ),
        (
            "R49: nor does what follows a launch in its stream wait for the next launch elsewhere",
            "",
            "graph_launch, s: s1, g: g, w: [A]; graph_launch, s: s2, g: g, w: [A]; kernel, s: s1, r: [A]",
            "RAW A 1 2",
            "graph_launch, s: s1, g: g, w: [A]; graph_launch, s: s2, g: g, w: [A]; kernel, s: s2, r: [A]",
        ),
    ]);
}

#[test]
fn copies_and_the_host() {
    all(&[
        (
            "R19: a pageable upload may still run when the call returns",
            "",
            "copy, from: P, to: A; kernel, s: s1, r: [A]",
            "RAW A 0 1",
            "copy, from: H, to: A; kernel, s: s1, r: [A]",
        ),
        (
            "R19: and its source was read by then, by the caller alone",
            "",
            "copy, from: P, to: A; host_write, buf: P, t: b",
            "HOST_WAR P 0 1",
            "copy, from: P, to: A; host_write, buf: P",
        ),
        (
            "R20: a copy within devices does not block",
            "",
            "copy, from: A, to: B; kernel, s: s1, r: [B]",
            "RAW B 0 1",
            "copy, from: A, to: B; sync_device; kernel, s: s1, r: [B]",
        ),
        (
            "R21: a download blocks its caller, asynchronous it does not",
            "",
            "copy_async, s: s1, from: A, to: H; host_read, buf: H",
            "HOST_RAW H 0 1",
            "copy, from: A, to: H; host_read, buf: H",
        ),
        (
            "R23: from host to host it blocks its caller, and no other thread",
            "",
            "copy_async, s: s1, from: H, to: P; host_read, buf: P, t: b",
            "HOST_RAW P 0 1",
            "copy_async, s: s1, from: H, to: P; host_read, buf: P",
        ),
        (
            "R24: a memset blocks for host memory only",
            "",
            "memset, to: A; kernel, s: s1, r: [A]",
            "RAW A 0 1",
            "memset, to: M; kernel, s: s1, r: [M]",
        ),
        (
            "R24: an asynchronous one never does",
            "",
            "memset_async, s: s1, to: H; host_write, buf: H",
            "HOST_WAW H 0 1",
            "memset, to: H; host_write, buf: H",
        ),
        (
            "R25: the source of an asynchronous upload has to stay as it is",
            "",
            "copy_async, s: s1, from: H, to: A; host_write, buf: H",
            "HOST_WAR H 0 1",
            "copy_async, s: s1, from: H, to: A; host_read, buf: H",
        ),
        (
            "R26: managed memory counts as the device's in a copy, and as both in a conflict",
            "",
            "kernel, s: s1, r: [M]; host_write, buf: M",
            "HOST_WAR M 0 1",
            "kernel, s: s1, r: [M]; copy, from: M, to: P; sync_stream, st: s1; host_write, buf: M",
        ),
        (
            "R27: freeing pinned memory is no wait",
            "",
            "copy_async, s: s1, from: H, to: A; free_pinned, buf: H",
            "UAF H 0 1",
            "copy_async, s: s1, from: H, to: A; sync_stream, st: s1; free_pinned, buf: H",
        ),
        (
            "R30: conflicts are between bytes",
            "",
            "kernel, s: s1, w: [\"A[0:65]\"]; kernel, s: s2, r: [\"A[64:128]\"]",
            "RAW A 0 1",
            "kernel, s: s1, w: [\"A[0:64]\"]; kernel, s: s2, r: [\"A[64:128]\", \"A[3:3]\"]",
        ),
        (
            "host threads are ordered by flags only",
            "",
            "host_write, buf: H; host_read, buf: H, t: b",
            "HOST_RAW H 0 1",
            "host_write, buf: H; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: H, t: b",
        ),
    ]);
}

/// R20, R22, R26, R31: CUDA leaves open whether a call blocks its caller.
#[test]
fn what_is_open_is_open_to_the_caller() {
    all(&[
        (
            "the caller itself",
            "",
            "copy_async, s: s1, from: A, to: P; host_read, buf: P",
            "HOST_RAW P 0 1?",
            "copy_async, s: s1, from: A, to: P; sync_stream, st: s1; host_read, buf: P",
        ),
        (
            "another thread, after the copy",
            "",
            "copy_async, s: s1, from: P, to: A; host_write, buf: P, t: b",
            "HOST_WAR P 0 1",
            "copy_async, s: s1, from: P, to: A; sync_stream, st: s1, t: b; host_write, buf: P, t: b",
        ),
        (
            "another thread, before the copy",
            "",
            "host_write, buf: P, t: b; copy_async, s: s1, from: P, to: A",
            "HOST_WAR P 0 1",
            "host_write, buf: P, t: b; set_flag, flag: f, t: b; wait_flag, flag: f; copy_async, s: s1, from: P, to: A",
        ),
        (
            "another thread that reads",
            "",
            "copy_async, s: s1, from: A, to: P; host_read, buf: P, t: b",
            "HOST_RAW P 0 1",
            "copy_async, s: s1, from: A, to: P; sync_device, t: b; host_read, buf: P, t: b",
        ),
        (
            "a function on the host that was submitted before",
            "",
            "host_func, s: s2, w: [P]; copy_async, s: s1, from: P, to: A",
            "HOST_WAR P 0 1",
            "host_func, s: s2, w: [P]; wait_stream, s: s1, src: s2; copy_async, s: s1, from: P, to: A",
        ),
        (
            "a function on the host that the caller submits afterwards",
            "",
            "copy_async, s: s1, from: P, to: A; host_func, s: s2, w: [P]",
            "HOST_WAR P 0 1?",
            "copy_async, s: s1, from: P, to: A; host_func, s: s1, w: [P]",
        ),
        (
            "another thread that is signalled afterwards",
            "",
            "copy_async, s: s1, from: A, to: P; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: P, t: b",
            "HOST_RAW P 0 3?",
            "copy_async, s: s1, from: A, to: P; sync_stream, st: s1; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: P, t: b",
        ),
        (
            "another thread that was signalled before",
            "",
            "set_flag, flag: f; copy_async, s: s1, from: A, to: P; wait_flag, flag: f, t: b; host_read, buf: P, t: b",
            "HOST_RAW P 1 3",
            "copy_async, s: s1, from: A, to: P; sync_stream, st: s1; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: P, t: b",
        ),
        (
            "another thread that has waited for later work of the caller's",
            "",
            "copy_async, s: s1, from: P, to: A; kernel, s: s2, w: [B]; sync_stream, st: s2, t: b; host_write, buf: P, t: b",
            "HOST_WAR P 0 3?",
            "copy_async, s: s1, from: P, to: A; kernel, s: s2, w: [B]; sync_device, t: b; host_write, buf: P, t: b",
        ),
        (
            "managed memory after a copy within devices: the caller",
            "",
            "copy, from: A, to: M; host_read, buf: M",
            "HOST_RAW M 0 1?",
            "copy, from: A, to: M; sync_device; host_read, buf: M",
        ),
        (
            "managed memory after a copy within devices: another thread",
            "",
            "copy, from: A, to: M; host_read, buf: M, t: b",
            "HOST_RAW M 0 1",
            "copy, from: A, to: M; sync_device, t: b; host_read, buf: M, t: b",
        ),
        (
            "cudaFree by the thread that called the work",
            "",
            "kernel, s: s1, w: [A]; cuda_free, buf: A",
            "UAF A 0 1?",
            "kernel, s: s1, w: [A]; sync_stream, st: s1; cuda_free, buf: A",
        ),
        (
            "cudaFree by a thread that is ordered after the call",
            "",
            "kernel, s: s1, w: [A]; set_flag, flag: f; wait_flag, flag: f, t: b; cuda_free, buf: A, t: b",
            "UAF A 0 3?",
            "kernel, s: s1, w: [A]; set_flag, flag: f; wait_flag, flag: f, t: b; sync_device, t: b; cuda_free, buf: A, t: b",
        ),
        (
            "cudaFree by a thread that is not ordered after the call of the work",
            "",
            "kernel, s: s1, w: [A]; cuda_free, buf: A, t: b",
            "UAF A 0 1",
            "kernel, s: s1, w: [A]; sync_stream, st: s1, t: b; cuda_free, buf: A, t: b",
        ),
        (
            "pinned memory: nothing is open",
            "",
            "copy_async, s: s1, from: A, to: H; host_read, buf: H",
            "HOST_RAW H 0 1",
            "copy_async, s: s1, from: A, to: H; sync_stream, st: s1; host_read, buf: H",
        ),
    ]);
}

/// R28, and the semantics of flags.
#[test]
fn functions_on_the_host_and_flags() {
    all(&[
        (
            "a function is ordered in its stream, and delays it",
            "",
            "host_func, s: s1, w: [H]; kernel, s: s2, r: [H]",
            "HOST_WAR H 0 1",
            "host_func, s: s1, w: [H]; kernel, s: s1, r: [H]",
        ),
        (
            "its flag is raised at its end, and covers what came before it in its stream",
            "",
            "host_func, s: s1, sets: f; kernel, s: s1, w: [M]; wait_flag, flag: f; host_read, buf: M",
            "HOST_RAW M 1 3",
            "kernel, s: s1, w: [M]; host_func, s: s1, sets: f; wait_flag, flag: f; host_read, buf: M",
        ),
        (
            "a raised flag releases the waiting thread: a later raise adds nothing",
            "",
            "kernel, s: s1, w: [A]; set_flag, flag: f; host_func, s: s1, sets: f; wait_flag, flag: f, t: b; kernel, s: s2, r: [A], t: b",
            "RAW A 0 4",
            "kernel, s: s1, w: [A]; host_func, s: s1, sets: f; wait_flag, flag: f, t: b; kernel, s: s2, r: [A], t: b",
        ),
        (
            "two raises, and what only one of them covers",
            "",
            "kernel, s: s1, w: [M]; host_func, s: s1, sets: f; kernel, s: s2, w: [M2]; host_func, s: s2, sets: f; wait_flag, flag: f; host_read, buf: M; host_read, buf: M2",
            "HOST_RAW M 0 5; HOST_RAW M2 2 6",
            "kernel, s: s1, w: [M]; host_func, s: s1, sets: f; kernel, s: s2, w: [M2]; host_func, s: s2, sets: g; wait_flag, flag: f; wait_flag, flag: g; host_read, buf: M; host_read, buf: M2",
        ),
        (
            "what both cover is covered",
            "",
            "kernel, s: s1, w: [M]; wait_stream, s: s2, src: s1; kernel, s: s2, w: [M2]; host_func, s: s2, sets: f; host_func, s: s1, sets: f; wait_flag, flag: f; host_read, buf: M; host_read, buf: M2",
            "HOST_RAW M2 2 7",
            "kernel, s: s1, w: [M]; wait_stream, s: s2, src: s1; kernel, s: s2, w: [M2]; host_func, s: s2, sets: f; host_func, s: s1, sets: f; wait_flag, flag: f; host_read, buf: M",
        ),
        (
            "a flag that was waited for is down, and the next raise is another",
            "",
            "set_flag, flag: f; host_write, buf: H; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: H, t: b",
            "HOST_RAW H 1 4",
            "set_flag, flag: f; wait_flag, flag: f, t: b; host_write, buf: H; set_flag, flag: f; wait_flag, flag: f, t: b; host_read, buf: H, t: b",
        ),
        (
            "a wait for a flag that was taken waits for the earlier raises",
            "",
            "set_flag, flag: f; host_write, buf: H; wait_flag, flag: f, t: b; wait_flag, flag: f, t: c; host_read, buf: H, t: c",
            "HOST_RAW H 1 4",
            "host_write, buf: H; set_flag, flag: f; wait_flag, flag: f, t: b; wait_flag, flag: f, t: c; host_read, buf: H, t: c",
        ),
    ]);
}

#[test]
fn lives_and_tenants() {
    all(&[
        (
            "R31: cudaMalloc orders nothing",
            "",
            "kernel, s: s1, w: [M]; cuda_malloc, buf: A; host_read, buf: M",
            "HOST_RAW M 0 2",
            "kernel, s: s1, w: [M]; cuda_malloc, buf: A; sync_stream, st: s1; host_read, buf: M",
        ),
        (
            "R31: nor does cudaFree of something else",
            "",
            "cuda_malloc, buf: A; kernel, s: s1, w: [M]; cuda_free, buf: A; host_read, buf: M",
            "HOST_RAW M 1 3",
            "cuda_malloc, buf: A; kernel, s: s1, w: [M]; cuda_free, buf: A; sync_device; host_read, buf: M",
        ),
        (
            "R33: memory is usable in the order of its stream",
            "",
            "malloc_async, buf: A, s: s1; kernel, s: s2, w: [A]",
            "UBA A 0 1",
            "malloc_async, buf: A, s: s1; wait_stream, s: s2, src: s1; kernel, s: s2, w: [A]",
        ),
        (
            "R33: elsewhere after an event, also one that the host has waited for",
            "",
            "record, ev: e, s: s1; malloc_async, buf: A, s: s1; sync_event, ev: e; kernel, s: s2, w: [A]",
            "UBA A 1 3",
            "malloc_async, buf: A, s: s1; record, ev: e, s: s1; sync_event, ev: e; kernel, s: s2, w: [A]",
        ),
        (
            "R34: all uses are ordered before the free",
            "",
            "malloc_async, buf: A, s: s1; wait_stream, s: s2, src: s1; kernel, s: s2, w: [A]; free_async, buf: A, s: s1",
            "UAF A 2 3",
            "malloc_async, buf: A, s: s1; wait_stream, s: s2, src: s1; kernel, s: s2, w: [A]; free_async, buf: A, s: s2",
        ),
        (
            "R35: cudaFree of such memory does not wait",
            "",
            "malloc_async, buf: A, s: s1; kernel, s: s1, w: [A]; cuda_free, buf: A",
            "UAF A 1 2",
            "malloc_async, buf: A, s: s1; kernel, s: s1, w: [A]; sync_stream, st: s1; cuda_free, buf: A",
        ),
        (
            "R52, R56: a block comes back at once, and its last tenant may still run elsewhere",
            "",
            "alloc, buf: A, s: s1; wait_stream, s: s2, src: s1; kernel, s: s2, r: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]",
            "UAF B 2 5",
            "alloc, buf: A, s: s1; kernel, s: s1, r: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]",
        ),
        (
            "R56: the first use on a side stream waits for the home stream",
            "",
            "alloc, buf: A, s: s1; kernel, s: s1, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s2, w: [B]",
            "UAF B 1 4",
            "alloc, buf: A, s: s1; kernel, s: s1, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; wait_stream, s: s2, src: s1; kernel, s: s2, w: [B]",
        ),
        (
            "R53: record_stream keeps the block until the events are seen complete",
            "",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
            "UAF B 1 4",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; record_stream, buf: A, st: s2; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
        ),
        (
            "R53: events that were not seen complete prove nothing",
            "",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; record_stream, buf: A, st: s2; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]",
            "UAF B 1 5",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; record_stream, buf: A, st: s2; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
        ),
        (
            "R53: recording the home stream changes nothing",
            "",
            "alloc, buf: A, s: s1; kernel, s: s1, w: [A]; record_stream, buf: A, st: s1; free, buf: A; alloc, buf: B, s: s3, over: A, after_events: true; kernel, s: s3, w: [B]",
            "UAF B 1 5",
            "alloc, buf: A, s: s1; kernel, s: s1, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
        ),
        (
            "R54: the events cover the work up to the free, also what came after record_stream",
            "",
            "alloc, buf: A, s: s1; record_stream, buf: A, st: s2; free, buf: A; kernel, s: s2, w: [A]; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
            "UAF B 3 5",
            "alloc, buf: A, s: s1; record_stream, buf: A, st: s2; kernel, s: s2, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]",
        ),
        (
            "R55: instead the home stream may wait before the free",
            "",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]",
            "UAF B 1 4",
            "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; wait_stream, s: s1, src: s2; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]",
        ),
        (
            "captured work does not run, its launch does",
            "",
            "begin_capture, s: s1; kernel, s: s1, w: [A]; end_capture, s: s1; graph_launch, s: s1, g: g, w: [A]; kernel, s: s2, r: [A]",
            "RAW A 3 4",
            "begin_capture, s: s1; kernel, s: s1, w: [A]; end_capture, s: s1; kernel, s: s2, r: [A]; wait_stream, s: s1, src: s2; graph_launch, s: s1, g: g, w: [A]",
        ),
    ]);
}

/// Checks racy programs and their repaired twins.
#[track_caller]
pub fn all(rows: &[Twins]) {
    let mut wrong = Vec::new();
    for &(what, declared, racy, expected, repaired) in rows {
        for (ops, expected) in [(racy, expected), (repaired, "")] {
            let found = findings(declared, ops);
            if found != expected {
                wrong.push(format!(
                    "{what}\n  {ops}\n  found {found:?}, expected {expected:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn findings(declared: &str, ops: &str) -> String {
    let lines = ops
        .split(';')
        .map(|op| format!("- {{do: {}}}\n", op.trim()));
    let text = format!(
        "name: twin\n{declared}\nops:\n{}",
        lines.collect::<String>()
    );
    let document = parse(&text, &Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = document.programs[0]
        .as_ref()
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let checked = check(program);
    assert_eq!(checked.report.error, None, "{text}");
    let answer = judge(&Prog::from_program(program));
    assert_eq!(judged(&answer, program), [""; 0], "{text}");
    let races = checked.report.races.iter().map(|race| {
        let buffer = race
            .buffer
            .map_or("-".to_owned(), |buffer| checked.names.buffer(buffer));
        let open = match race.severity() {
            Severity::Warn => "?",
            Severity::Error => "",
        };
        let (kind, first, second) = (race.kind.code(), race.first.0, race.second.0);
        format!("{kind} {buffer} {first} {second}{open}")
    });
    races.collect::<Vec<_>>().join("; ")
}
