//! Every rule of the rule book, on the smallest program that shows it.
//!
//! A program is a list of ops in the format's flow style. Its expected meaning is a list of relations between ops by
//! number: `0<2` op 0 is promised to be complete before op 2 starts, `0|2` nothing is promised. An op that touches
//! memory at two points (a blocking upload) has `0r` for its reads and `0w` for its writes. `!3 Code` says that op 3
//! fails.

use sidestream::order::{Chain, Clocks, Epoch, Force, Order, Performs, Steps};
use sidestream_program::{Command, Limits, lower, parse};

/// What the rule book says of one op.
#[derive(Default)]
struct Points {
    reads: Option<(Epoch, Chain)>,
    last: Option<(Epoch, Chain)>,
}

#[track_caller]
fn check(declarations: &str, ops: &str, relations: &str) {
    let found = relate(declarations, ops, relations, Force::Promised);
    assert_eq!(found, words(relations), "\n{ops}");
}

/// Like `check`, but also counts behaviour that devices were observed to have.
#[track_caller]
fn check_observed(ops: &str, relations: &str) {
    let found = relate("", ops, relations, Force::Observed);
    assert_eq!(found, words(relations), "\n{ops}");
}

fn words(relations: &str) -> Vec<String> {
    relations.split("  ").map(str::to_owned).collect()
}

/// Returns the relations of the rule book, for the pairs that `relations` asks about.
#[track_caller]
fn relate(declarations: &str, ops: &str, relations: &str, weakest: Force) -> Vec<String> {
    let lines = ops
        .split(';')
        .map(|op| format!("- {{do: {}}}\n", op.trim()));
    let text = format!(
        "name: rule\n{declarations}\nops:\n{}",
        lines.collect::<String>()
    );
    let document = parse(&text, &Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = document.programs[0]
        .as_ref()
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let lowered = lower(program);
    let mut order = Order::new();
    lowered.declare(&mut order);
    let mut clocks = Clocks::new(weakest);
    let mut steps = Steps::new();
    let mut points: Vec<Points> = Vec::new();
    // By pair of ops: whether the later op's first point and last point know the earlier op's.
    let mut known: Vec<(String, bool)> = Vec::new();
    let mut failed = None;
    for command in &lowered.commands {
        let Command::Op(op) = command else {
            points.push(Points::default());
            continue;
        };
        if let Err(misuse) = order.push(op, &mut steps) {
            failed = Some(format!("!{} {}", op.id.0, misuse.code.name()));
            break;
        }
        let mut here = Points::default();
        for step in &steps {
            let epoch = clocks.apply(step, &order);
            let later = op.id.0;
            for (earlier, before) in points.iter().enumerate() {
                let sides = [("r", before.reads), ("w", before.last), ("", before.last)];
                for (suffix, point) in sides {
                    let Some((epoch, _)) = point else { continue };
                    let ordered = clocks.ordered(epoch, step.chain);
                    for name in [
                        format!("{later}"),
                        format!("{later}{}", side(step.performs)),
                    ] {
                        known.push((format!("{earlier}{suffix}?{name}"), ordered));
                    }
                }
            }
            if step.performs == Performs::Reads {
                here.reads = Some((epoch, step.chain));
            }
            // A step that only waits is not a point at which memory is touched.
            if here.last.is_none() || step.performs != Performs::Nothing {
                here.last = Some((epoch, step.chain));
            }
        }
        points.push(here);
    }
    let relation = |wanted: &String| {
        if wanted.starts_with('!') {
            return failed.clone().unwrap_or_else(|| "no op fails".to_owned());
        }
        let asked = wanted.replace(['<', '|'], "?");
        // The last answer counts: that of the op's last step.
        let answer = known.iter().rev().find(|(pair, _)| *pair == asked);
        match answer {
            Some((_, true)) => asked.replace('?', "<"),
            Some((_, false)) => asked.replace('?', "|"),
            None => format!("{wanted}: no such points"),
        }
    };
    words(relations).iter().map(relation).collect()
}

fn side(performs: Performs) -> &'static str {
    match performs {
        Performs::Reads => "r",
        _ => "w",
    }
}

const LEGACY: &str = "streams: {b: blk, c: blk, d: legacy, e: legacy@1, v: blk@1, p: ptds}";

#[test]
fn r01_a_stream_is_in_order_whichever_thread_feeds_it() {
    check(
        "",
        "kernel, s: s1, w: [A]; kernel, s: s1, r: [A], t: other",
        "0<1",
    );
}

#[test]
fn r02_two_streams_are_not_ordered() {
    check("", "kernel, s: s1, w: [A]; kernel, s: s2, r: [A]", "0|1");
}

#[test]
fn r03_nothing_starts_before_its_call() {
    let ops = "host_write, buf: H; kernel, s: s1, r: [H]; host_write, buf: H, t: other";
    check("", ops, "0<1  1|2  0|2");
}

#[test]
fn r04_threads_that_feed_one_stream_are_not_ordered_by_it() {
    let ops = "host_write, buf: H; kernel, s: s1, r: [H]; kernel, s: s1, r: [H], t: b; host_write, buf: H, t: b";
    check("", ops, "0<1  0<2  1<2  0|3  2|3");
}

#[test]
fn r05_a_record_covers_the_work_before_it_and_the_last_one_counts() {
    let ops = "kernel, s: s1, w: [A]; record, ev: e, s: s1; kernel, s: s1, w: [B]; wait, s: s2, ev: e; kernel, s: s2, r: [A]";
    check("", ops, "0<4  2|4");
    let ops = "kernel, s: s1, w: [A]; record, ev: e, s: s1; record, ev: e, s: s3; wait, s: s2, ev: e; kernel, s: s2, r: [A]";
    check("", ops, "0|4");
}

#[test]
fn r06_a_wait_holds_only_later_work_of_its_stream() {
    let ops = "kernel, s: s1, w: [A]; record, ev: e, s: s1; kernel, s: s2, r: [A]; wait, s: s2, ev: e; kernel, s: s2, r: [A]; kernel, s: s3, r: [A]";
    check("", ops, "0|2  0<4  0|5");
}

#[test]
fn r07_a_placed_wait_keeps_its_record() {
    let ops = "record, ev: e, s: s1; wait, s: s2, ev: e; kernel, s: s1, w: [A]; record, ev: e, s: s1; kernel, s: s2, r: [A]; sync_event, ev: e; host_read, buf: M";
    check("", ops, "2|4  2<6");
}

#[test]
fn r08_waiting_for_an_unrecorded_event_waits_for_nothing() {
    let ops = "kernel, s: s1, w: [A]; wait, s: s2, ev: e; record, ev: e, s: s1; kernel, s: s2, r: [A]; sync_event, ev: f; host_read, buf: M";
    check("", ops, "0|3  0|5");
}

#[test]
fn r09_the_host_waits_for_an_event_a_stream_a_device() {
    let ops = "kernel, s: s1, w: [M]; record, ev: e, s: s1; kernel, s: s1, w: [M2]; sync_event, ev: e; host_read, buf: M; sync_stream, st: s1; host_read, buf: M2";
    check("", ops, "0<4  2|4  2<6");
    check(
        LEGACY,
        "kernel, s: s1, w: [M]; kernel, s: v, w: [M2]; sync_device; host_read, buf: M",
        "0<3  1|3",
    );
}

#[test]
fn r10_a_query_that_answers_done_is_a_sync() {
    let ops = "kernel, s: s1, w: [M]; query_stream, st: s1; host_read, buf: M; query_stream, st: s1, ready: true; host_read, buf: M";
    check("", ops, "0|2  0<4");
    let ops = "kernel, s: s1, w: [M]; record, ev: e, s: s1; query_event, ev: e; host_read, buf: M; query_event, ev: e, ready: true; host_read, buf: M";
    check("", ops, "0|3  0<5");
}

#[test]
fn r11_elapsed_wants_two_timed_records() {
    check(
        "",
        "record, ev: a, s: s1; elapsed, a: a, b: b",
        "!1 InvalidResourceHandle",
    );
    check(
        "events: {a: no_timing}",
        "record, ev: a, s: s1; record, ev: b, s: s1; elapsed, a: a, b: b",
        "!2 InvalidResourceHandle",
    );
}

#[test]
fn r12_destroying_an_event_keeps_placed_waits() {
    let ops = "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: s2, ev: e; destroy_event, ev: e; kernel, s: s2, r: [A]; wait, s: s3, ev: e; kernel, s: s3, r: [A]";
    check("", ops, "0<4  0|6");
}

#[test]
fn r13_destroying_a_stream_waits_for_nothing() {
    let ops = "kernel, s: s1, w: [M]; destroy_stream, st: s1; host_read, buf: M; create_stream, st: s1; kernel, s: s1, w: [M]; sync_device; host_read, buf: M";
    check("", ops, "0|2  0|4  0<6");
}

#[test]
fn r14_the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let ops =
        "kernel, s: b, w: [A]; kernel, s: d, w: [A]; kernel, s: c, w: [A]; kernel, s: b, w: [A]";
    check(LEGACY, ops, "0<1  1<2  1<3  0<2  2|3");
}

#[test]
fn r15_non_blocking_streams_take_no_part() {
    let ops = "kernel, s: s1, w: [A]; kernel, s: d, w: [A]; kernel, s: s1, w: [A]";
    check(LEGACY, ops, "0|1  1|2");
}

#[test]
fn r16_syncing_the_legacy_stream_covers_blocking_streams() {
    let ops = "kernel, s: b, w: [M]; kernel, s: s1, w: [M2]; sync_stream, st: d; host_read, buf: M";
    check(LEGACY, ops, "0<3  1|3");
    // Waiting for a blocking stream does not cover the legacy stream.
    check(
        LEGACY,
        "kernel, s: d, w: [M]; sync_stream, st: b; host_read, buf: M",
        "0|2",
    );
}

#[test]
fn r17_a_record_or_wait_in_the_legacy_stream_is_an_action() {
    let ops = "kernel, s: b, w: [A]; record, ev: e, s: d; kernel, s: c, w: [A]; wait, s: s1, ev: e; kernel, s: s1, w: [A]";
    check(LEGACY, ops, "0<2  0<4  2|4");
    let ops = "kernel, s: s1, w: [A]; record, ev: e, s: s1; wait, s: d, ev: e; kernel, s: b, r: [A]; kernel, s: s2, r: [A]";
    check(LEGACY, ops, "0<3  0|4");
}

#[test]
fn r18_a_per_thread_stream_is_a_blocking_one() {
    let ops =
        "kernel, s: p, w: [A]; kernel, s: d, w: [A]; kernel, s: p, w: [A]; kernel, s: b, w: [A]";
    check(LEGACY, ops, "0<1  1<2  2|3");
}

#[test]
fn r19_a_blocking_pageable_upload_returns_before_the_transfer() {
    let ops = "kernel, s: b, w: [B]; copy, from: P, to: A; host_write, buf: P; kernel, s: s1, r: [A]; kernel, s: b, r: [A]";
    check(LEGACY, ops, "0<1r  1r<2  1w|3  1w<4");
    check(LEGACY, "copy, from: H, to: A; kernel, s: s1, r: [A]", "0<1");
}

#[test]
fn r20_a_blocking_copy_within_devices_does_not_block() {
    check("", "copy, from: A, to: B; kernel, s: s1, r: [B]", "0|1");
}

#[test]
fn r21_a_blocking_download_is_complete_on_return() {
    check("", "copy, from: A, to: P; host_read, buf: P", "0<1");
    check("", "copy, from: A, to: H; host_read, buf: H", "0<1");
}

#[test]
fn r22_an_asynchronous_pageable_copy_promises_nothing() {
    let ops = "copy_async, s: s1, from: A, to: P; host_read, buf: P; copy_async, s: s1, from: P2, to: A; host_write, buf: P2";
    check("", ops, "0|1  2|3");
    check_observed(ops, "0<1  2|3");
}

#[test]
fn r40_a_copy_to_a_peer_is_ordered_by_its_stream_and_by_events_across_devices() {
    let ops = "kernel, s: s1, w: [A]; copy_peer, s: s1, from: A, to: B, peer: 1; kernel, s: v, r: [B]; \
               record, ev: e, s: s1; wait, s: v, ev: e; kernel, s: v, r: [B]";
    check("streams: {v: nb@1}", ops, "0<1  1|2  1<5");
}

#[test]
fn r61_a_batch_is_ordered_in_its_stream_and_blocks_for_nothing() {
    let ops = "kernel, s: s1, w: [A]; copy_batch, s: s1, from: A, to: P; kernel, s: s1, w: [A]; host_read, buf: P; \
               copy_batch, s: s1, from: P2, to: P3; host_write, buf: P2";
    check("", ops, "0<1  1<2  1|3  4|5");
}

#[test]
fn r62_a_source_read_during_the_call_is_read_at_its_return() {
    let ops = "copy_batch, s: s1, from: P, to: A, source: during_call; host_write, buf: P; host_read, buf: P; \
               kernel, s: s1, w: [M]; copy_batch, s: s1, from: M, to: B, source: during_call";
    check("", ops, "0r<1  0w|2  3|4r  3<4w");
}

#[test]
fn r64_a_wait_for_a_value_is_ordered_after_the_write_that_ends_it() {
    let ops = "kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1; kernel, s: s1, w: [B]; \
               write_value, s: s1, at: w, value: 2; wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]; \
               wait_value, s: s2, at: w, value: 2; kernel, s: s2, r: [B]";
    check("", ops, "0<5  2|5  2<7");
    // A write that may overtake earlier ones orders nothing, nor one of which the wait does not tell which it was.
    let ops = "kernel, s: s1, w: [A]; write_value, s: s1, at: w, value: 1, unfenced: true; \
               wait_value, s: s2, at: w, value: 1, when: eq; kernel, s: s2, r: [A]; \
               write_value, s: s3, at: v, value: 1; kernel, s: s1, w: [A]; write_value, s: s1, at: v, value: 3; \
               wait_value, s: s2, at: v, value: 1, when: and; kernel, s: s2, r: [A]";
    check("", ops, "0|3  5|8");
    // What was written before a value that does not end the wait was overwritten.
    let ops = "write_value, s: s1, at: w, value: 1; write_value, s: s2, at: w, value: 0; kernel, s: s1, w: [A]; \
               write_value, s: s1, at: w, value: 1; wait_value, s: s2, at: w, value: 1; kernel, s: s2, r: [A]";
    check("", ops, "2<5");
}

#[test]
fn r67_unregistering_host_memory_is_no_wait() {
    check(
        "",
        "copy_async, s: s1, from: H, to: A; unregister, buf: H",
        "0|1",
    );
}

#[test]
fn r68_an_event_of_a_context_covers_its_streams() {
    let ops = "kernel, s: s1, w: [A]; kernel, s: s2, w: [B]; wait_stream, s: c, src: s1; wait_stream, s: c, src: s2; \
               record, ev: e, s: c; kernel, s: s2, w: [C]; wait, s: s3, ev: e; wait, s: s4, ev: e; \
               kernel, s: s3, r: [A]; kernel, s: s4, r: [B]";
    check("streams: {c: nb}", ops, "0<8  1<9  5|8");
}

#[test]
fn r32_reuse_within_a_pool_promises_a_program_no_order() {
    let ops = "malloc_async, buf: A, s: s1; kernel, s: s1, w: [A]; free_async, buf: A, s: s1; malloc_async, buf: A, s: s2; kernel, s: s2, w: [A]";
    check("", ops, "1|4");
}

#[test]
fn r23_host_to_host_blocks() {
    check(
        "",
        "copy_async, s: s1, from: H, to: P; host_read, buf: P",
        "0<1",
    );
    check("", "copy, from: P, to: H; host_read, buf: H", "0<1");
}

#[test]
fn r24_a_blocking_memset_blocks_for_host_memory_only() {
    check("", "memset, to: H; host_read, buf: H", "0<1");
    check("", "memset, to: M; host_read, buf: M", "0<1");
    check("", "memset, to: A; kernel, s: s1, r: [A]", "0|1");
    check("", "memset_async, s: s1, to: H; host_read, buf: H", "0|1");
}

#[test]
fn r25_an_asynchronous_pinned_copy_does_not_block() {
    check(
        "",
        "copy_async, s: s1, from: H, to: A; host_write, buf: H",
        "0|1",
    );
    check(
        "",
        "copy_async, s: s1, from: A, to: H; host_read, buf: H",
        "0|1",
    );
}

#[test]
fn r26_managed_memory_counts_as_the_devices() {
    check("", "copy, from: A, to: M; host_read, buf: M", "0|1");
    check("", "copy, from: M, to: P; host_read, buf: P", "0<1");
}

#[test]
fn r27_freeing_pinned_memory_is_no_wait() {
    let ops = "kernel, s: s1, r: [H], w: [M]; free_pinned, buf: H; host_read, buf: M";
    check("", ops, "0|1  0|2");
    check_observed(ops, "0<1  0<2");
}

#[test]
fn r28_a_host_function_is_ordered_in_its_stream_and_raises_its_flag() {
    let ops = "kernel, s: s1, w: [A]; host_func, s: s1, sets: f; kernel, s: s1, w: [A]; wait_flag, flag: f, t: b; host_write, buf: H, t: b; kernel, s: s2, w: [A], t: b";
    check("", ops, "0<1  1<2  0<4  1<4  2|4  1<5");
}

#[test]
fn r31_freeing_device_memory_is_no_wait() {
    let ops =
        "kernel, s: s1, r: [A], w: [M]; cuda_malloc, buf: B; cuda_free, buf: A; host_read, buf: M";
    check("", ops, "0|2  0|3");
    check_observed(ops, "0<2  0<3");
}

#[test]
fn r33_stream_ordered_memory_is_usable_in_stream_order() {
    let ops = "malloc_async, buf: Q, s: s1; kernel, s: s1, w: [Q]; kernel, s: s2, w: [Q]; wait_stream, s: s3, src: s1; kernel, s: s3, w: [Q]";
    check("", ops, "0<1  0|2  0<4");
}

#[test]
fn r34_a_stream_ordered_free_is_ordered_in_its_stream() {
    let ops = "malloc_async, buf: Q, s: s1; kernel, s: s1, w: [Q]; kernel, s: s2, w: [Q]; free_async, buf: Q, s: s2";
    check("", ops, "1|3  2<3");
}

#[test]
fn r35_freeing_stream_ordered_memory_by_cuda_free_was_not_seen_to_wait() {
    let ops = "malloc_async, buf: Q, s: s1; kernel, s: s1, w: [Q]; cuda_free, buf: Q";
    check_observed(ops, "1|2");
}

#[test]
fn r38_an_event_is_recorded_on_its_own_device() {
    let declared = "streams: {v: nb@1}\nevents: {e: dev0}";
    check(declared, "record, ev: e, s: v", "!0 InvalidResourceHandle");
}

#[test]
fn r39_r40_waits_and_syncs_work_across_devices() {
    let ops = "kernel, s: v, w: [M]; record, ev: e, s: v; wait, s: s1, ev: e; kernel, s: s1, r: [M]; sync_event, ev: e; host_read, buf: M";
    check(LEGACY, ops, "0<3  0<5");
}

#[test]
fn r41_a_device_sync_covers_one_device() {
    let ops = "kernel, s: v, w: [M]; sync_device; host_read, buf: M; set_device, dev: 1; sync_device; host_read, buf: M";
    check(LEGACY, ops, "0|2  0<5");
}

#[test]
fn r42_every_device_has_its_own_legacy_stream() {
    let ops =
        "kernel, s: v, w: [A]; kernel, s: d, w: [A]; kernel, s: e, w: [A]; kernel, s: v, w: [A]";
    check(LEGACY, ops, "0|1  0<2  1|2  2<3  1|3");
    let ops = "kernel, s: v, w: [A]; memset, to: A; set_device, dev: 1; memset, to: A";
    check(LEGACY, ops, "0|1  0<3");
}

#[test]
fn r43_times_of_two_devices_cannot_be_compared() {
    let ops = "record, ev: x, s: s1; record, ev: y, s: v; elapsed, a: x, b: y";
    check(LEGACY, ops, "!2 InvalidResourceHandle");
}

#[test]
fn r45_the_legacy_stream_and_captures() {
    check(LEGACY, "begin_capture, s: d", "!0 StreamCaptureUnsupported");
    for used in [
        "kernel, s: d, w: [A]",
        "copy, from: A, to: B",
        "memset, to: A",
        "record, ev: x, s: d",
        "wait, s: d, ev: x",
        "sync_stream, st: d",
        "query_stream, st: d",
        "wait_stream, s: s1, src: d",
    ] {
        let ops = format!("begin_capture, s: b; {used}");
        check(LEGACY, &ops, "!1 StreamCaptureImplicit");
        let ops = format!(
            "begin_capture, s: s1; {used}; kernel, s: d; end_capture, s: s1; end_capture, s: s1"
        );
        if !used.starts_with("wait_stream") {
            check(LEGACY, &ops, "!4 IllegalState");
        }
    }
}

#[test]
fn r46_asking_for_captured_work_fails() {
    check(
        "",
        "begin_capture, s: s1; sync_stream, st: s1",
        "!1 StreamCaptureUnsupported",
    );
    check(
        "",
        "begin_capture, s: s1; query_stream, st: s1",
        "!1 StreamCaptureUnsupported",
    );
    check(
        "",
        "begin_capture, s: s1; sync_device",
        "!1 StreamCaptureUnsupported",
    );
    let ops = "begin_capture, s: s1; record, ev: e, s: s1";
    check("", &format!("{ops}; sync_event, ev: e"), "!2 CapturedEvent");
    check(
        "",
        &format!("{ops}; query_event, ev: e"),
        "!2 CapturedEvent",
    );
}

#[test]
fn r47_a_capture_keeps_to_itself() {
    check(
        "",
        "record, ev: e, s: s2; begin_capture, s: s1; wait, s: s1, ev: e",
        "!2 StreamCaptureIsolation",
    );
    check(
        "",
        "begin_capture, s: s1; wait_stream, s: s1, src: s2",
        "!1 StreamCaptureIsolation",
    );
    let two =
        "begin_capture, s: s1; begin_capture, s: s2; record, ev: e, s: s2; wait, s: s1, ev: e";
    check("", two, "!3 StreamCaptureMerge");
    let never = "begin_capture, s: s1; wait, s: s1, ev: e; end_capture, s: s1; end_capture, s: s1";
    check("", never, "!3 IllegalState");
}

#[test]
fn r48_forks_must_be_joined_where_the_capture_began() {
    let fork = "begin_capture, s: s1; record, ev: e, s: s1; wait, s: s2, ev: e";
    check(
        "",
        &format!("{fork}; kernel, s: s2; end_capture, s: s1"),
        "!4 StreamCaptureUnjoined",
    );
    check(
        "",
        &format!("{fork}; end_capture, s: s2"),
        "!3 StreamCaptureUnmatched",
    );
    check(
        "",
        &format!("{fork}; end_capture, s: s1, t: b"),
        "!3 StreamCaptureWrongThread",
    );
    let joined = format!(
        "{fork}; kernel, s: s2; wait_stream, s: s1, src: s2; end_capture, s: s1; kernel, s: s1, w: [A]; kernel, s: s2, w: [A]; end_capture, s: s1"
    );
    check("", &joined, "6|7  !8 IllegalState");
    // A fork without work need not be joined.
    check(
        "",
        &format!("{fork}; end_capture, s: s1; end_capture, s: s1"),
        "!4 IllegalState",
    );
}

#[test]
fn r49_a_graph_never_overlaps_itself() {
    let ops = "graph_launch, s: s1, g: g, w: [A]; graph_launch, s: s2, g: g, w: [A]; graph_launch, s: s3, g: h, w: [A]";
    check("", ops, "0<1  1|2");
}

#[test]
fn r50_wait_stream_takes_a_snapshot() {
    let ops = "kernel, s: s1, w: [A]; wait_stream, s: s2, src: s1; kernel, s: s1, w: [B]; kernel, s: s2, r: [A]";
    check("", ops, "0<3  2|3");
}

#[test]
fn r51_the_pool_hands_out_its_first_stream_again() {
    let ops = "pool_get, count: 33, first: x, last: y; kernel, s: x, w: [A]; kernel, s: y, w: [A]";
    check("", ops, "1<2");
    let ops = "pool_get, count: 32, first: x, last: y; kernel, s: x, w: [A]; kernel, s: y, w: [A]";
    check("", ops, "1|2");
}

#[test]
fn r52_a_freed_block_carries_no_order_of_its_own() {
    let ops = "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; free, buf: A; alloc, buf: B, s: s1, over: A; kernel, s: s1, w: [B]";
    check("", ops, "1|4");
}

#[test]
fn r53_seen_events_of_a_free_order_the_next_tenant() {
    let ops = "alloc, buf: A, s: s1; kernel, s: s2, w: [A]; record_stream, buf: A, st: s2; free, buf: A; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]";
    check("", ops, "1<5");
    // The home stream is not recorded, so the host learns nothing about it.
    let ops = "alloc, buf: A, s: s1; kernel, s: s1, w: [A]; record_stream, buf: A, st: s1; free, buf: A; alloc, buf: B, s: s3, over: A, after_events: true; kernel, s: s3, w: [B]";
    check("", ops, "1|5");
}

#[test]
fn r54_the_events_of_a_free_cover_work_up_to_the_free() {
    let ops = "alloc, buf: A, s: s1; record_stream, buf: A, st: s2; kernel, s: s2, w: [A]; free, buf: A; kernel, s: s2, w: [A]; alloc, buf: B, s: s1, over: A, after_events: true; kernel, s: s1, w: [B]";
    check("", ops, "2<6  4|6");
}

#[test]
fn host_flags_order_threads() {
    let ops = "host_write, buf: H; set_flag, flag: f; host_write, buf: H; wait_flag, flag: f, t: b; host_read, buf: H, t: b";
    check("", ops, "0<4  2|4");
}
