//! Tests the log of a run, with spans and times: the result of `check`, and the trace that `check --trace` writes.

use std::path::Path;

use crate::command::{FOLDER, Ran, sidestream};
use crate::input::{file, ran_on};
use serde_json::{Value, json};
use sidestream::backend::Done;
use sidestream::check::{self, OnRace};
use sidestream::log::{Live, Recorder};
use sidestream::op::*;

/// Records two kernels on two streams that touch one buffer. Returns the log, and the findings of a checker that observed the
/// run.
fn recorded(timed: bool) -> (Vec<u8>, String) {
    let live = Live::default();
    let (recorder, sink) = if timed {
        Recorder::with_times(Vec::new())
    } else {
        Recorder::new(Vec::new())
    }
    .expect("memory takes everything");
    live.attach(sink);
    let (findings, sink) = check::live(OnRace::Report, check::LIVE_MEMORY_BYTES);
    live.attach(sink);
    let [copies, kernels] = ["copies", "kernels"]
        .map(|name| live.new_stream(StreamKind::NonBlocking, DeviceId(0), name));
    let thread = live.new_thread("t0");
    let buffer = {
        let mut pen = live.write().expect("there is a listener");
        pen.new_buffer(Memory::Device, 1024, None, "weights")
    };
    let kernel = |stream, mode| {
        let mut pen = live.write().expect("there is a listener");
        let site = pen.site(std::panic::Location::caller());
        let access = Access {
            buffer,
            start: 0,
            end: 1024,
            mode,
        };
        let id = pen.next_op();
        pen.op(&Op {
            id,
            thread,
            site,
            kind: Kind::kernel(stream),
            accesses: [access].into_iter().collect(),
        });
        id
    };
    live.span(thread, Some("forward"));
    let first = kernel(copies, Mode::Write);
    live.span(thread, None);
    let second = kernel(kernels, Mode::Read);
    live.done(&[(first, 1_000), (second, 2_000)].map(|(op, start)| Done {
        op,
        call_ns: Some((start, start + 100)),
        work_ns: Some((start + 200, start + 900)),
    }));
    let log = recorder.finish().expect("memory takes everything");
    (log, findings.text())
}

fn check(log: &[u8], options: &[&str]) -> Ran {
    ran_on("check", log, options)
}

/// Returns a name for a file that does not exist yet.
fn fresh() -> String {
    let name = file("");
    std::fs::remove_file(Path::new(FOLDER).join(&name)).expect("it was just written");
    name
}

fn exists(name: &str) -> bool {
    Path::new(FOLDER).join(name).exists()
}

#[test]
fn the_command_prints_what_a_live_checker_prints_and_names_the_span() {
    let (log, live) = recorded(false);
    let ran = check(&log, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    let (head, body) = ran.out.split_once('\n').expect("lines");
    let (live_head, live_body) = live.split_once('\n').expect("lines");
    assert_eq!(
        (head.rsplit_once(": ").map(|(_, sum)| sum)),
        Some(live_head)
    );
    assert_eq!(body, live_body);
    assert!(
        body.contains("op 0 on copies, in span forward, at "),
        "{body}"
    );
    assert!(body.contains("op 1 on kernels, at "), "{body}");
    assert!(body.contains("before op 1 (at "), "{body}");
}

#[test]
fn the_json_of_a_race_has_the_spans_if_there_are_any() {
    let (log, _) = recorded(false);
    let ran = check(&log, &["--json"]);
    let line: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(line["races"][0]["spans"], json!(["forward", null]));
}

#[test]
fn a_log_with_times_becomes_a_trace_that_can_be_checked_again() {
    let (log, _) = recorded(true);
    let to = fresh();
    let ran = check(&log, &["--trace", &to]);
    // The trace is written in addition to the report.
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    assert!(ran.out.contains("RAW on weights"), "{}", ran.out);
    let text = std::fs::read_to_string(Path::new(FOLDER).join(&to)).expect("it was written");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let rows = trace["traceEvents"].as_array().expect("a list");
    let count = |cat: &str| rows.iter().filter(|row| row["cat"] == cat).count();
    assert_eq!((count("cuda_runtime"), count("kernel")), (2, 2));
    assert_eq!(
        (count("user_annotation"), count("gpu_user_annotation")),
        (1, 1)
    );

    let again = fresh();
    let from_log = check(&log, &["--json"]).out;
    let from_trace = sidestream(&["check", "--json", "--trace", &again, &to]).out;
    let races = |out: &str| -> Value {
        let line: Value = serde_json::from_str(out).expect("one line of JSON");
        line["races"].clone()
    };
    assert_eq!(races(&from_trace), races(&from_log));
    let second = std::fs::read_to_string(Path::new(FOLDER).join(&again)).expect("it was written");
    assert_eq!(second, text);
}

#[test]
fn without_times_there_is_no_trace_but_a_report() {
    let (log, _) = recorded(false);
    let to = fresh();
    let ran = check(&log, &["--trace", &to]);
    assert_eq!(ran.code, 2);
    assert!(ran.out.contains("RAW on weights"), "{}", ran.out);
    assert_eq!(
        ran.err,
        "sidestream: FILE: none of the 2 operations of the log has times, so there is no trace to write; \
         record the run with times (`Recorder::with_times`)\n"
    );
    assert!(!exists(&to));
}

#[test]
fn a_log_that_was_cut_off_still_becomes_a_trace() {
    let (log, _) = recorded(true);
    let to = fresh();
    let ran = check(&log[..log.len() - 3], &["--trace", &to]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("the file ends in the end record"),
        "{}",
        ran.err
    );
    assert!(exists(&to));
}

#[test]
fn logs_that_cannot_become_a_trace_are_refused_before_writing() {
    let (log, to) = (file(recorded(true).0), fresh());
    let program = file("name: x\nops: []\n");
    for (args, says) in [
        (vec![program.as_str()], "use `sidestream run --trace`"),
        (vec![log.as_str(), log.as_str()], "several files; give one"),
    ] {
        let ran = sidestream(&[&["check", "--trace", &to][..], &args].concat());
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
        assert!(ran.err.contains(says), "{}", ran.err);
    }
    let ran = sidestream(&["check", "--trace", &log, &log]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains("would overwrite"), "{}", ran.err);
    assert!(!exists(&to));
    let ran = sidestream(&["check", "--trace", "nowhere/trace.json", &log]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(
        ran.err
            .contains("--trace nowhere/trace.json cannot be written: No such file"),
        "{}",
        ran.err
    );
}

/// Bytes after the header: each error in spans and times gives one line that names the place.
#[test]
fn inconsistent_spans_and_times() {
    let head = b"SIDESTRM\x03\0\0\0\0\0\0\0\x04\0\x05\0";
    let deep = [7, 1, 0, 0].repeat(257);
    let name = [&[7, 1, 0, 0x81, 0x20][..], &[b'n'; 4_097]].concat();
    for (bytes, says) in [
        (&[7][..], "byte 21: the file ends in a span"),
        (&[7, 1, 0, 9, b'f'], "the file ends in a span"),
        (&[7, 0, 0], "byte 20: thread 0 leaves a span and is in none"),
        (&[7, 1, 1, 0], "thread 1 is named and 1 are declared"),
        (&[7, 2, 0], "expected 1 to enter a span, 0 to leave one"),
        (&deep, "expected at most 256 spans of a thread at once"),
        (&name, "expected at most 4096 bytes in a name"),
        (
            &[8, 0, 0],
            "expected the distance from the newest operation",
        ),
        (&[8, 7, 0], "expected which times are known, 0 to 3"),
        (
            &[0x93, 0, 0, 8, 1, 0, 5],
            "the file ends in the times of an operation",
        ),
    ] {
        let log = [head, bytes].concat();
        for options in [&[][..], &["--trace", &fresh()]] {
            let ran = check(&log, options);
            assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{says}");
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
            assert!(ran.err.contains(says), "no {says:?} in {}", ran.err);
        }
    }
}
