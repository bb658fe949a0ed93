//! Tests the oracle itself: programs written by hand whose answer is certain, one or two for each rule.

use sidestream_program::{Limits, parse};

use crate::oracle::compare::{Printed, faults};
use crate::oracle::model::{Answer, Point, Severity, judge};
use crate::oracle::prog::Prog;

fn answer(head: &str, ops: &[&str]) -> Answer {
    let mut text = format!("name: by_hand\n{head}\nops:\n");
    for op in ops {
        text += &format!("- {{do: {op}}}\n");
    }
    let document = parse(&text, &Limits::default()).expect("a document");
    let program = document.programs[0].as_ref().expect("a valid program");
    let prog = Prog::from_program(program);
    assert_eq!(
        prog.to_program().ops.len(),
        ops.len(),
        "writes what it read"
    );
    let answer = judge(&prog);
    assert_eq!(answer.outside, [], "the format defines what happens");
    assert_eq!(faults(&answer, &Printed::of(&answer)), [""; 0]);
    answer
}

/// Returns all unordered pairs, as `KIND buffer first second`, with `?` for a warning and `+` if the pair must be
/// printed.
fn races(head: &str, ops: &[&str]) -> Vec<String> {
    let answer = answer(head, ops);
    assert_eq!(answer.error, None);
    shown(&answer)
}

fn shown(answer: &Answer) -> Vec<String> {
    let show = |r: &crate::oracle::model::Race| {
        format!(
            "{} {} {} {}{}{}",
            r.kind.word(),
            r.buffer.as_deref().unwrap_or("-"),
            r.first,
            r.second,
            if r.severity == Severity::Warn {
                "?"
            } else {
                ""
            },
            if r.adjacent.is_some() { "+" } else { "" }
        )
    };
    answer.races.iter().map(show).collect()
}

fn lints(head: &str, ops: &[&str]) -> Vec<(&'static str, usize)> {
    answer(head, ops).lints
}

fn error(head: &str, ops: &[&str]) -> Option<(usize, &'static str)> {
    answer(head, ops).error
}

const NONE: [&str; 0] = [];

#[test]
fn two_streams_have_no_order() {
    let found = races("", &["kernel, s: s1, w: [A]", "kernel, s: s2, r: [A]"]);
    assert_eq!(found, ["RAW A 0 1+"]);
    let found = races("", &["kernel, s: s1, r: [A]", "kernel, s: s2, w: [A]"]);
    assert_eq!(found, ["WAR A 0 1+"]);
    let found = races(
        "",
        &[
            "kernel, s: s1, r: [A], w: [A]",
            "kernel, s: s2, r: [A], w: [A]",
        ],
    );
    assert_eq!(
        found,
        ["RAW A 0 1+"],
        "one entry for a pair of ops and a buffer"
    );
    let found = races("", &["kernel, s: s1, r: [A]", "kernel, s: s2, r: [A]"]);
    assert_eq!(found, NONE);
    let found = races("", &["kernel, s: s1, w: [A]", "kernel, s: s1, r: [A]"]);
    assert_eq!(found, NONE, "R1");
}

#[test]
fn a_wait_takes_the_record_made_last() {
    // The second kernel is in the second record, and the wait was placed before that (R5, R7).
    let ops = [
        "kernel, s: s1, w: [A]",
        "record, ev: e, s: s1",
        "wait, s: s2, ev: e",
        "kernel, s: s1, w: [B]",
        "record, ev: e, s: s1",
        "kernel, s: s2, r: [A, B]",
    ];
    assert_eq!(races("", &ops), ["RAW B 3 5+"]);
    // Destroying the event leaves the wait in place (R12); a wait that is placed afterwards does nothing (R8).
    let ops = [
        "kernel, s: s1, w: [A]",
        "record, ev: e, s: s1",
        "wait, s: s2, ev: e",
        "destroy_event, ev: e",
        "wait, s: s3, ev: e",
        "kernel, s: s2, r: [A]",
        "kernel, s: s3, r: [A]",
    ];
    assert_eq!(races("", &ops), ["RAW A 0 6+"]);
    assert_eq!(lints("", &ops), [("WAIT_ON_UNRECORDED_EVENT", 4)]);
}

#[test]
fn bytes_and_neighbours_decide() {
    let head = "buffers: {X: {kind: dev, bytes: 100}}";
    let ops = [
        "kernel, s: s1, w: [\"X[0:50]\"]",
        "kernel, s: s2, w: [\"X[50:100]\"]",
        "kernel, s: s3, r: [\"X[49:51]\", \"X[10:10]\"]",
    ];
    assert_eq!(races(head, &ops), ["RAW X 0 2+", "RAW X 1 2+"], "R30");
    // A later read of the same stream and a write in between hide what came before; it may still be reported.
    let ops = [
        "kernel, s: s1, r: [X]",
        "kernel, s: s1, r: [X]",
        "kernel, s: s2, w: [X]",
        "kernel, s: s3, w: [X]",
    ];
    let expected = [
        "WAR X 0 2",
        "WAR X 1 2+",
        "WAR X 0 3",
        "WAR X 1 3",
        "WAW X 2 3+",
    ];
    assert_eq!(races(head, &ops), expected);
    // The write in between covers only a part.
    let ops = [
        "kernel, s: s1, w: [X]",
        "kernel, s: s2, w: [\"X[0:99]\"]",
        "kernel, s: s3, r: [X]",
    ];
    assert_eq!(
        races(head, &ops),
        ["WAW X 0 1+", "RAW X 0 2+", "RAW X 1 2+"]
    );
}

#[test]
fn host_and_device() {
    let ops = [
        "host_write, buf: H",
        "copy_async, s: s1, from: H, to: A",
        "host_write, buf: H",
    ];
    assert_eq!(
        races("", &ops),
        ["HOST_WAR H 1 2+"],
        "R3 orders 0 and 1, nothing 1 and 2"
    );
    let ops = ["copy_async, s: s1, from: A, to: H", "host_read, buf: H"];
    assert_eq!(races("", &ops), ["HOST_RAW H 0 1+"]);
    let ops = ["copy_async, s: s1, from: A, to: P", "host_read, buf: P"];
    assert_eq!(races("", &ops), ["HOST_RAW P 0 1?+"], "R22 is open");
    // R23: host to host is complete when the call returns. Another thread does not know that.
    let ops = [
        "copy_async, s: s1, from: H1, to: H2",
        "host_read, buf: H2",
        "host_read, buf: H2, t: other",
    ];
    assert_eq!(races("", &ops), ["HOST_RAW H2 0 2+"]);
    // Two threads: the order of the list does not matter; a flag does.
    let ops = ["host_write, buf: H", "host_read, buf: H, t: other"];
    assert_eq!(races("", &ops), ["HOST_RAW H 0 1+"]);
    let ops = [
        "host_write, buf: H",
        "set_flag, flag: f",
        "wait_flag, flag: f, t: other",
        "host_read, buf: H, t: other",
    ];
    assert_eq!(races("", &ops), NONE);
}

#[test]
fn work_in_a_stream_inherits_what_its_callers_knew() {
    // The kernel of the other thread comes after the copy in the stream, and so after the host write (R3, R4).
    let ops = [
        "host_write, buf: H",
        "memset_async, s: s1, to: A",
        "copy_async, s: s1, from: H, to: B, t: other",
        "copy_async, s: s2, from: H, to: C, t: other",
    ];
    assert_eq!(
        races("", &ops),
        ["HOST_WAR H 0 3+"],
        "the host writes what the device may be reading"
    );
}

#[test]
fn the_legacy_stream() {
    let head = "streams: {b: blk, y: ptds, n: nb, d: legacy, far: legacy@1, bf: blk@1}";
    // R14, R15: blocking streams are ordered with the legacy stream, non-blocking ones are not.
    let ops = [
        "kernel, s: b, w: [A]",
        "kernel, s: d, w: [B]",
        "kernel, s: y, r: [A, B]",
        "kernel, s: n, r: [A, B]",
    ];
    assert_eq!(races(head, &ops), ["RAW A 0 3+", "RAW B 1 3+"]);
    assert_eq!(lints(head, &ops), [("DEFAULT_STREAM_SERIALIZATION", 1)]);
    // R17: a record alone in the legacy stream orders blocking streams too, and does not count as work for the lint. A
    // query orders nothing.
    let ops = [
        "kernel, s: b, w: [A]",
        "record, ev: e, s: d",
        "kernel, s: y, r: [A]",
    ];
    assert_eq!(races(head, &ops), NONE);
    assert_eq!(lints(head, &ops), []);
    let ops = [
        "kernel, s: b, w: [A]",
        "query_stream, st: d",
        "kernel, s: y, r: [A]",
    ];
    assert_eq!(races(head, &ops), ["RAW A 0 2+"]);
    // R42: the legacy stream of another device has no effect.
    let ops = [
        "kernel, s: b, w: [A]",
        "record, ev: e, s: far",
        "kernel, s: y, r: [A]",
        "kernel, s: bf, r: [A]",
    ];
    assert_eq!(races(head, &ops), ["RAW A 0 2+", "RAW A 0 3+"]);
    // R16: a sync of the legacy stream covers blocking streams; a sync of a blocking stream does not cover the legacy
    // stream.
    let ops = [
        "kernel, s: b, w: [M]",
        "kernel, s: n, w: [M1]",
        "sync_stream, st: d",
        "host_read, buf: M",
        "host_read, buf: M1",
    ];
    assert_eq!(races(head, &ops), ["HOST_RAW M1 1 4+"]);
    let ops = [
        "kernel, s: d, w: [M]",
        "sync_stream, st: b",
        "host_read, buf: M",
    ];
    assert_eq!(races(head, &ops), ["HOST_RAW M 0 2+"]);
    let ops = [
        "kernel, s: d, w: [M]",
        "record, ev: e, s: b",
        "sync_stream, st: b",
        "host_read, buf: M",
    ];
    assert_eq!(races(head, &ops), NONE);
}

#[test]
fn blocking_copies() {
    let head = "streams: {b: blk}";
    // R19: the pageable source is free at return; the target is not yet filled for a non-blocking stream.
    let ops = [
        "copy, from: P, to: A",
        "host_write, buf: P",
        "kernel, s: s1, r: [A]",
        "kernel, s: b, r: [A]",
    ];
    assert_eq!(races(head, &ops), ["RAW A 0 2+"]);
    // R19: a pinned upload is complete on return. R21: so is a download. R20: device to device is not.
    let ops = [
        "copy, from: H, to: A",
        "kernel, s: s1, r: [A]",
        "copy, from: B, to: P",
        "kernel, s: s1, w: [B]",
    ];
    assert_eq!(races(head, &ops), NONE);
    let ops = ["copy, from: B, to: A", "kernel, s: s1, r: [A]"];
    assert_eq!(races(head, &ops), ["RAW A 0 1+"]);
    let ops = ["copy, from: B, to: M", "host_read, buf: M"];
    assert_eq!(
        races(head, &ops),
        ["HOST_RAW M 0 1?+"],
        "R20 and R26 are open"
    );
    // R19: the pageable upload begins with a sync, so blocking work is known to be complete; the source is read after
    // it.
    let ops = [
        "kernel, s: b, w: [M]",
        "copy, from: P, to: A",
        "host_read, buf: M",
    ];
    assert_eq!(races(head, &ops), NONE);
    let ops = ["copy_async, s: s1, from: A, to: P", "copy, from: P, to: B"];
    assert_eq!(
        races(head, &ops),
        ["HOST_RAW P 0 1?+"],
        "the caller reads it"
    );
    // R24
    let ops = [
        "memset, to: H",
        "host_read, buf: H",
        "memset, to: P",
        "host_read, buf: P",
    ];
    assert_eq!(races(head, &ops), ["HOST_RAW P 2 3+"]);
    // The legacy stream of the thread's current device.
    let ops = [
        "set_device, dev: 1",
        "memset, to: A",
        "kernel, s: b, r: [A]",
    ];
    assert_eq!(races(head, &ops), ["RAW A 1 2+"]);
}

#[test]
fn host_functions_and_graphs() {
    let ops = [
        "copy_async, s: s1, from: A, to: H",
        "host_func, s: s1, r: [H], sets: f",
        "copy_async, s: s1, from: B, to: H",
        "wait_flag, flag: f",
        "host_read, buf: H",
    ];
    assert_eq!(races("", &ops), ["HOST_RAW H 2 4+"], "R28");
    let ops = [
        "graph_launch, s: s1, g: g, w: [A]",
        "graph_launch, s: s2, g: g, w: [A]",
        "graph_launch, s: s3, g: h, w: [A]",
    ];
    assert_eq!(races("", &ops), ["WAW A 0 2", "WAW A 1 2+"], "R49");
}

#[test]
fn ends_of_life() {
    let ops = ["kernel, s: s1, w: [A]", "cuda_free, buf: A"];
    assert_eq!(races("", &ops), ["UAF A 0 1?+"], "R31");
    let ops = ["copy_async, s: s1, from: H, to: A", "free_pinned, buf: H"];
    assert_eq!(races("", &ops), ["UAF H 0 1+"], "R27");
    let ops = [
        "malloc_async, buf: Q, s: s1",
        "kernel, s: s2, r: [Q]",
        "cuda_free, buf: Q",
    ];
    assert_eq!(
        races("", &ops),
        ["UBA Q 0 1+", "UAF Q 0 2+", "UAF Q 1 2+"],
        "R33, R35"
    );
    let ops = [
        "malloc_async, buf: Q, s: s1",
        "kernel, s: s1, w: [Q]",
        "free_async, buf: Q, s: s1",
    ];
    assert_eq!(races("", &ops), NONE, "R34");
}

#[test]
fn the_caching_allocator() {
    let start = [
        "alloc, buf: A, s: s1",
        "wait_stream, s: s2, src: s1",
        "kernel, s: s2, r: [A]",
    ];
    let end = |after: &'static str| ["free, buf: A", after, "kernel, s: s1, w: [B]"];
    let plain = "alloc, buf: B, s: s1, over: A";
    // R52: the block is handed out again at once.
    let ops = [&start[..], &end(plain)].concat();
    assert_eq!(races("", &ops), ["UAF B 2 5+"]);
    // R53: the use is recorded, and the event is seen complete.
    let noted = ["record_stream, buf: A, st: s2"];
    let seen = "alloc, buf: B, s: s1, over: A, after_events: true";
    let ops = [&start[..], &noted, &end(seen)].concat();
    assert_eq!(races("", &ops), NONE);
    // Recorded for the home stream: ignored.
    let home = ["record_stream, buf: A, st: s1"];
    let ops = [&start[..], &home, &end(seen)].concat();
    assert_eq!(races("", &ops), ["UAF B 2 6+"]);
    // R54: a use after the free is not covered.
    let late = [
        "free, buf: A",
        "kernel, s: s2, r: [A]",
        seen,
        "kernel, s: s1, w: [B]",
    ];
    let ops = [&start[..], &noted, &late].concat();
    assert_eq!(races("", &ops), ["UAF B 5 7+"]);
    // R55
    let joined = ["wait_stream, s: s1, src: s2"];
    let ops = [&start[..], &joined, &end(plain)].concat();
    assert_eq!(races("", &ops), NONE);
    // The second tenant has only the other half of the bytes.
    let head = "buffers: {B: {kind: dev, bytes: 512}}";
    let ops = [
        "alloc, buf: A, s: s1",
        "kernel, s: s2, r: [\"A[0:512]\"]",
        "free, buf: A",
        "alloc, buf: B, s: s1, over: \"A[512:1024]\"",
        "kernel, s: s1, w: [B]",
    ];
    assert_eq!(races(head, &ops), NONE);
}

#[test]
fn times() {
    let ops = [
        "record, ev: a, s: s1",
        "record, ev: b, s: s1",
        "elapsed, a: a, b: b",
    ];
    assert_eq!(races("", &ops), ["TIMING - 1 2+"]);
    let ops = [
        "record, ev: a, s: s1",
        "record, ev: b, s: s1",
        "sync_event, ev: a",
        "elapsed, a: a, b: b",
    ];
    assert_eq!(races("", &ops), ["TIMING - 1 3+"]);
    let ops = [
        "record, ev: a, s: s1",
        "record, ev: b, s: s2",
        "query_event, ev: b, ready: true",
        "elapsed, a: a, b: b",
    ];
    assert_eq!(races("", &ops), ["TIMING - 0 3+"]);
    let ops = [
        "record, ev: a, s: s1",
        "record, ev: b, s: s1",
        "sync_device",
        "elapsed, a: a, b: b",
    ];
    assert_eq!(races("", &ops), NONE);
    let ops = ["record, ev: a, s: s1", "elapsed, a: a, b: b"];
    assert_eq!(error("", &ops), Some((1, "InvalidResourceHandle")));
    let head = "streams: {v: nb@1}\nevents: {n: no_timing, e: dev0}";
    let ops = [
        "record, ev: n, s: s1",
        "sync_stream, st: s1",
        "elapsed, a: n, b: n",
    ];
    assert_eq!(error(head, &ops), Some((2, "InvalidResourceHandle")));
    let ops = [
        "record, ev: a, s: s1",
        "record, ev: b, s: v",
        "elapsed, a: a, b: b",
    ];
    assert_eq!(error(head, &ops), Some((2, "InvalidResourceHandle")), "R43");
    assert_eq!(
        error(head, &["record, ev: e, s: v"]),
        Some((0, "InvalidResourceHandle")),
        "R38"
    );
}

#[test]
fn captures() {
    let head = "streams: {b: blk, d: legacy}";
    let begin = "begin_capture, s: s1";
    let fails = |ops: &[&str]| error(head, ops);
    // Captured work does not run.
    let ops = [
        begin,
        "kernel, s: s1, w: [A]",
        "end_capture, s: s1",
        "kernel, s: s2, r: [A]",
    ];
    assert_eq!(races(head, &ops), NONE);
    // A fork with work must be joined; one without need not be.
    let fork = ["kernel, s: s1, w: [A]", "wait_stream, s: s2, src: s1"];
    let ops = [&[begin], &fork[..], &["end_capture, s: s1"]].concat();
    assert_eq!(fails(&ops), None);
    let ops = [
        &[begin],
        &fork[..],
        &["kernel, s: s2, r: [A]", "end_capture, s: s1"],
    ]
    .concat();
    assert_eq!(fails(&ops), Some((4, "StreamCaptureUnjoined")));
    let join = [
        "kernel, s: s2, r: [A]",
        "wait_stream, s: s3, src: s2",
        "wait_stream, s: s1, src: s3",
        "end_capture, s: s1",
    ];
    let ops = [&[begin], &fork[..], &join].concat();
    assert_eq!(fails(&ops), None);
    let ops = [&[begin], &fork[..], &["end_capture, s: s2"]].concat();
    assert_eq!(fails(&ops), Some((3, "StreamCaptureUnmatched")));
    assert_eq!(
        fails(&[begin, "end_capture, s: s1, t: other"]),
        Some((1, "StreamCaptureWrongThread"))
    );
    // Events from outside and from another capture.
    let ops = [
        "record, ev: e, s: s2",
        "sync_event, ev: e",
        begin,
        "wait, s: s1, ev: e",
    ];
    assert_eq!(fails(&ops), Some((3, "StreamCaptureIsolation")));
    let ops = [begin, "begin_capture, s: s2", "wait_stream, s: s1, src: s2"];
    assert_eq!(fails(&ops), Some((2, "StreamCaptureMerge")));
    assert_eq!(fails(&[begin, "wait, s: s1, ev: never"]), None);
    assert_eq!(
        fails(&[begin, "record, ev: e, s: s1", "query_event, ev: e"]),
        Some((2, "CapturedEvent"))
    );
    // Syncs.
    assert_eq!(
        fails(&[begin, "sync_stream, st: s1"]),
        Some((1, "StreamCaptureUnsupported"))
    );
    assert_eq!(
        fails(&[begin, "sync_device, dev: 0"]),
        Some((1, "StreamCaptureUnsupported"))
    );
    assert_eq!(fails(&[begin, "sync_device, dev: 1"]), None);
    assert_eq!(
        fails(&["begin_capture, s: d"]),
        Some((0, "StreamCaptureUnsupported"))
    );
    // R45: a non-blocking stream that captures does not affect the legacy stream; a blocking one does.
    assert_eq!(fails(&[begin, "memset, to: A"]), None);
    assert_eq!(
        fails(&["begin_capture, s: b", "memset, to: A"]),
        Some((1, "StreamCaptureImplicit"))
    );
    let ops = [begin, "wait_stream, s: b, src: s1", "record, ev: e, s: d"];
    assert_eq!(fails(&ops), Some((2, "StreamCaptureImplicit")));
    let ops = ["begin_capture, s: b", "end_capture, s: b", "memset, to: A"];
    assert_eq!(fails(&ops), None);
}

#[test]
fn findings_before_a_failure_are_kept() {
    let ops = [
        "kernel, s: s1, w: [A]",
        "kernel, s: s2, w: [A]",
        "end_capture, s: s1",
        "kernel, s: s3, w: [A]",
    ];
    let answer = answer("", &ops);
    assert_eq!(answer.error, Some((2, "IllegalState")));
    assert_eq!(shown(&answer), ["WAW A 0 1+"]);
}

#[test]
fn a_stream_that_is_created_again_is_another_stream() {
    let ops = [
        "kernel, s: s1, w: [A]",
        "destroy_stream, st: s1",
        "create_stream, st: s1",
        "kernel, s: s1, r: [A]",
        "sync_device",
        "kernel, s: s1, w: [A]",
    ];
    assert_eq!(
        races("", &ops),
        ["RAW A 0 3+"],
        "R13; the device sync covers both"
    );
}

#[test]
fn lints_of_loops_and_pools() {
    let ops = [
        "kernel, s: s1, w: [A]",
        "sync_stream, st: s1, site: x",
        "kernel, s: s1, w: [A]",
        "sync_device, site: x",
        "sync_event, ev: e, site: x",
        "kernel, s: s1, w: [A]",
        "sync_event, ev: e, site: x",
        "sync_stream, st: s1, site: x",
    ];
    assert_eq!(lints("", &ops), [("SYNC_IN_LOOP", 6)]);
    let ops = [
        "pool_get, count: 33, first: p, last: q",
        "kernel, s: p, w: [A]",
        "kernel, s: q, r: [A]",
    ];
    assert_eq!(lints("level: runtime", &ops), [("STREAM_POOL_ALIAS", 0)]);
    assert_eq!(
        races("level: runtime", &ops),
        NONE,
        "one stream with two names"
    );
    let ops = [
        "kernel, s: v, r: [A]",
        "set_device, dev: 1",
        "kernel, s: v, r: [A]",
    ];
    assert_eq!(
        lints("streams: {v: nb@1}", &ops),
        [("FOREIGN_DEVICE_LAUNCH", 0)]
    );
}

#[test]
fn equal_sites_count_once() {
    let ops = [
        "kernel, s: s1, w: [A], site: x",
        "kernel, s: s2, w: [A], site: y",
        "kernel, s: s1, w: [A], site: x",
        "kernel, s: s2, w: [A], site: y",
    ];
    let answer = answer("", &ops);
    let printed: Vec<(usize, usize)> = answer
        .printed()
        .iter()
        .map(|r| (r.first, r.second))
        .collect();
    assert_eq!(printed, [(0, 1), (1, 2)]);
}

#[test]
fn the_relation_names_points() {
    let ops = [
        "kernel, s: s1, w: [A]",
        "sync_stream, st: s1",
        "kernel, s: s2, r: [A]",
    ];
    let graph = answer("", &ops).graph;
    let before = |a, b| graph.ordered(a, b);
    assert!(before((0, Point::Device(0)), (1, Point::Return)));
    assert!(!before((0, Point::Device(0)), (1, Point::Call)));
    assert!(!before((0, Point::Device(0)), (0, Point::Return)), "R3");
    assert!(before((0, Point::Device(0)), (2, Point::Device(0))));
    assert!(!before((2, Point::Device(0)), (0, Point::Device(0))));
}

#[test]
fn wrong_answers_are_noticed() {
    let ops = [
        "kernel, s: s1, r: [A]",
        "kernel, s: s1, r: [A]",
        "kernel, s: s2, w: [A]",
        "copy_async, s: s2, from: P, to: B",
        "host_write, buf: P",
    ];
    let answer = answer("", &ops);
    assert_eq!(
        shown(&answer),
        ["WAR A 0 2", "WAR A 1 2+", "HOST_WAR P 3 4?+"]
    );
    let right = Printed::of(&answer);
    let count = |change: &dyn Fn(&mut Printed)| {
        let mut printed = right.clone();
        change(&mut printed);
        faults(&answer, &printed).len()
    };
    assert_eq!(count(&|_| {}), 0);
    assert_eq!(
        count(&|p| drop(p.races.remove(0))),
        0,
        "not adjacent, may be left out"
    );
    assert_eq!(count(&|p| drop(p.races.remove(1))), 1, "has to be printed");
    assert_eq!(count(&|p| p.races[2].severity = "error".to_string()), 1);
    assert_eq!(count(&|p| p.races[0].kind = "RAW".to_string()), 1);
    assert_eq!(count(&|p| p.races.swap(0, 2)), 2, "order");
    assert_eq!(count(&|p| p.races.push(p.races[2].clone())), 1, "twice");
    assert_eq!(
        count(&|p| p.races[0].first = 3),
        2,
        "no such pair, and out of order"
    );
    assert_eq!(count(&|p| p.lints.clear()), 1);
    assert_eq!(count(&|p| p.verdict = "clean".to_string()), 1);
    assert_eq!(
        count(&|p| p.error = Some((1, "CapturedEvent".to_string()))),
        1
    );
}
