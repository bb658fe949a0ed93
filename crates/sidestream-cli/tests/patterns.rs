//! The serial programs of docs/patterns.md, run as loops and diagnosed: is the cause named, and does what it is
//! said to be worth lead to the step of the repaired twin?

use serde_json::Value;

use crate::command::sidestream;
use crate::input::file;

/// So often is a program run; each time is a step.
const TIMES: &str = "20";
/// The predicted step may be so far from the twin's.
const OFF: f64 = 0.10;

/// A serial program with its twin.
struct Pattern {
    serial: &'static str,
    twin: &'static str,
    /// The codes that name its cause; none where the twin gains nothing.
    causes: &'static [&'static str],
    /// Whether it is named and predicted today. What is may not be lost.
    holds: bool,
}

/// The finding about waits between streams that stand in the wrong place.
const WAITS: &[&str] = &["STREAM_WAIT"];

const PATTERNS: [Pattern; 15] = [
    pattern("augmentation", WAITS, false),
    pattern(
        "blocking_upload",
        &["PAGEABLE_COPY", "BLOCKING_COPY"],
        false,
    ),
    pattern("default_stream", &["DEFAULT_STREAM_SERIALIZATION"], true),
    Pattern {
        twin: "double_buffer_cuda.slots",
        ..pattern("double_buffer_cuda", &["COPY_ON_COMPUTE_STREAM"], false)
    },
    pattern("double_buffer_torch", WAITS, true),
    pattern("encoder_decoder", &["COPY_ON_COMPUTE_STREAM"], true),
    pattern("loss_readback", &["SYNC_IN_STEP", "BLOCKING_COPY"], true),
    pattern("multi_stage", &["SYNC_IN_STEP"], false),
    pattern("parallel_branches", &[], true),
    pattern("pinned_refill", &["SYNC_IN_STEP"], true),
    pattern("prefetch", &["SYNC_IN_STEP"], true),
    pattern("serving", &["SYNC_IN_STEP", "BLOCKING_COPY"], false),
    pattern("simple_overlap", &["PAGEABLE_COPY"], false),
    pattern("timing", &["SYNC_IN_STEP"], false),
    pattern(
        "train_step",
        &["COPY_ON_COMPUTE_STREAM", "STREAM_WAIT"],
        true,
    ),
];

const fn pattern(serial: &'static str, causes: &'static [&'static str], holds: bool) -> Pattern {
    Pattern {
        serial,
        twin: serial,
        causes,
        holds,
    }
}

/// What is said of an example, run again and again.
#[track_caller]
fn diagnosed(name: &str) -> Value {
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/streams");
    let (program, trace) = (format!("{streams}/{name}.yaml"), file(""));
    let ran = sidestream(&["run", &program, "--repeat", TIMES, "--trace", &trace]);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{name}: {}", ran.out);
    let said = sidestream(&["diagnose", "--json", &trace]);
    assert_eq!((said.code, &*said.err), (0, ""), "{name}");
    serde_json::from_str(&said.out).expect("one line of JSON")
}

#[track_caller]
fn step_ns(report: &Value) -> f64 {
    assert_eq!(report["steps"]["by"], "profiler_step");
    assert_eq!(report["steps"]["count"].to_string(), TIMES);
    report["steps"]["median_ns"].as_f64().expect("a time")
}

/// The first finding that is one, with the step that it leads to.
fn said(report: &Value) -> (&str, f64) {
    let step_ns = step_ns(report);
    let findings = report["findings"].as_array().expect("a list");
    let is = |code: &str| findings.iter().any(|f| f["code"] == code);
    let aside = [
        "STARTUP",
        "INITIALISATION",
        "PROFILER_OVERHEAD",
        "SERIAL_BRANCHES",
        "SERIAL_STAGES",
    ];
    let code = |f: &Value| {
        f["code"]
            .as_str()
            .is_some_and(|code| !aside.contains(&code))
    };
    match findings.iter().find(|f| code(f)) {
        Some(first) if !is("NOTHING_TO_GAIN") => {
            let likely = first["saving_ns"]["likely"].as_f64().unwrap_or(0.0);
            (first["code"].as_str().unwrap_or_default(), step_ns - likely)
        }
        _ => ("NOTHING_TO_GAIN", step_ns),
    }
}

#[test]
fn serial_programs_are_told_what_their_twins_gain() {
    let mut lost = Vec::new();
    for pattern in &PATTERNS {
        let (serial, twin) = (
            format!("{}.serial", pattern.serial),
            format!("{}.fixed", pattern.twin),
        );
        let report = diagnosed(&serial);
        let (code, predicted_ns) = said(&report);
        let (before_ns, after_ns) = (step_ns(&report), step_ns(&diagnosed(&twin)));
        let off = predicted_ns / after_ns - 1.0;
        let is_named = match pattern.causes {
            [] => code == "NOTHING_TO_GAIN",
            causes => causes.contains(&code),
        };
        let holds = is_named && off.abs() <= OFF;
        println!(
            "{:<20} {:>8.1} us, twin {:>8.1} us, said {code}: {:>8.1} us, {:>+6.1} %: {}",
            pattern.serial,
            before_ns / 1e3,
            after_ns / 1e3,
            predicted_ns / 1e3,
            100.0 * off,
            match (holds, pattern.holds) {
                (true, true) => "holds",
                (true, false) => "holds, and may be noted",
                (false, _) => "does not hold",
            }
        );
        if pattern.holds && !holds {
            lost.push(pattern.serial);
        }
    }
    assert_eq!(lost, [""; 0]);
}
