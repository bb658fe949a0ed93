//! Runs the serial programs of docs/guide/patterns.md as loops and diagnoses them: is the cause named, and does its predicted gain
//! lead to the step of the fixed twin?

use serde_json::Value;

use crate::command::sidestream;
use crate::input::file;

/// How often a program is run; each time is a step.
const TIMES: &str = "20";
/// The allowed error of the predicted step.
const OFF: f64 = 0.10;

/// The allowed error of the replay of a run of the simulator.
const REPLAY_OFF: f64 = 0.001;

/// A serial program with its twin.
struct Pattern {
    serial: &'static str,
    twin: &'static str,
    /// The changes of `--what-if` that turn the serial program into its twin, or why no changes do.
    changes: Result<&'static str, &'static str>,
    /// The first finding must have one of these codes. Empty where the first finding does not advise the change to the twin.
    causes: &'static [&'static str],
}

const fn pattern(
    serial: &'static str,
    changes: Result<&'static str, &'static str>,
    causes: &'static [&'static str],
) -> Pattern {
    Pattern {
        serial,
        twin: serial,
        changes,
        causes,
    }
}

const PREFETCH: Result<&str, &str> = Ok("prefetch=2");
const NO_SYNC: Result<&str, &str> = Ok("no-sync");
const DRAINS: Result<&str, &str> = Err("the twin waits at the end of each run of the program");
const SLOTS: Result<&str, &str> = Err("the twin has a stream for each slot");
const UPLOAD: &[&str] = &["PAGEABLE_COPY", "BLOCKING_COPY", "SYNC_IN_STEP"];
const LATE: &[&str] = &["COPY_ON_COMPUTE_STREAM", "STREAM_WAIT"];

const PATTERNS: [Pattern; 15] = [
    pattern("augmentation", PREFETCH, LATE),
    pattern("blocking_upload", Ok("pinned"), UPLOAD),
    pattern(
        "default_stream",
        Ok("non-blocking-streams"),
        &["DEFAULT_STREAM_SERIALIZATION"],
    ),
    Pattern {
        twin: "double_buffer_cuda.slots",
        ..pattern("double_buffer_cuda", SLOTS, LATE)
    },
    pattern("double_buffer_torch", PREFETCH, LATE),
    pattern("encoder_decoder", PREFETCH, LATE),
    pattern("loss_readback", NO_SYNC, UPLOAD),
    pattern("multi_stage", NO_SYNC, UPLOAD),
    // Two streams gain nothing, since the host launches too slowly: that finding comes first.
    pattern("parallel_branches", Ok("second-stream"), &["LAUNCH_BOUND"]),
    pattern("pinned_refill", NO_SYNC, UPLOAD),
    pattern("prefetch", NO_SYNC, UPLOAD),
    pattern("serving", NO_SYNC, UPLOAD),
    pattern("simple_overlap", DRAINS, UPLOAD),
    pattern("timing", DRAINS, UPLOAD),
    pattern("train_step", PREFETCH, LATE),
];

/// Returns the report on a program that is run repeatedly.
#[track_caller]
fn diagnosed(program: &str, more: &[&str]) -> Value {
    let trace = file("");
    let ran = sidestream(&["run", program, "--repeat", TIMES, "--trace", &trace]);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{program}: {}", ran.out);
    let said = sidestream(&[&["diagnose", "--json", &trace], more].concat());
    assert_eq!((said.code, &*said.err), (0, ""), "{program}");
    serde_json::from_str(&said.out).expect("one line of JSON")
}

fn example(name: &str) -> String {
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/streams");
    format!("{streams}/{name}.yaml")
}

#[track_caller]
fn step_ns(report: &Value) -> f64 {
    assert_eq!(report["steps"]["by"], "profiler_step");
    assert_eq!(report["steps"]["count"].to_string(), TIMES);
    report["steps"]["median_ns"].as_f64().expect("a time")
}

/// Returns the first finding that has advice.
fn first(report: &Value) -> &str {
    let aside = [
        "STARTUP",
        "INITIALISATION",
        "PROFILER_OVERHEAD",
        "SERIAL_BRANCHES",
        "SERIAL_STAGES",
    ];
    let findings = report["findings"].as_array().expect("a list").iter();
    let mut codes = findings.filter_map(|finding| finding["code"].as_str());
    codes.find(|code| !aside.contains(code)).unwrap_or_default()
}

#[test]
fn serial_programs_are_told_what_their_twins_gain() {
    let (mut wrong, mut predicted) = (Vec::new(), 0);
    for pattern in &PATTERNS {
        let set = pattern.changes.unwrap_or("no-sync");
        let serial = example(&format!("{}.serial", pattern.serial));
        // With requested changes a report has no other predictions, so the first finding is taken from a separate report.
        let report = diagnosed(&serial, &[]);
        let asked = diagnosed(&serial, &["--what-if", set]);
        let after_ns = step_ns(&diagnosed(
            &example(&format!("{}.fixed", pattern.twin)),
            &[],
        ));
        let likely_ns = asked["what_if"][0]["step_ns"]["likely"].as_f64();
        let off = likely_ns.expect("a prediction") / after_ns - 1.0;
        let is_near = off.abs() <= OFF;
        predicted += usize::from(pattern.changes.is_ok());
        let code = first(&report);
        println!(
            "{:<20} {:>8.1} us, twin {:>8.1} us, {set}: {:>+6.1} %{}; first {code}",
            pattern.serial,
            step_ns(&report) / 1e3,
            after_ns / 1e3,
            100.0 * off,
            pattern
                .changes
                .err()
                .map_or_else(String::new, |why| format!(" ({why})")),
        );
        if !pattern.causes.contains(&code) || (pattern.changes.is_ok() && !is_near) {
            wrong.push(pattern.serial);
        }
    }
    assert!(predicted >= 12);
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn the_replay_of_our_own_runs_is_exact() {
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/streams");
    let names = std::fs::read_dir(streams).expect("a folder").map(|entry| {
        let path = entry.expect("a name").path();
        path.to_str().expect("a name in UTF-8").to_owned()
    });
    let mut programs: Vec<String> = names.filter(|n| n.ends_with(".serial.yaml")).collect();
    programs.push(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/oversync.yaml").to_owned());
    assert!(programs.len() >= 17, "{programs:?}");
    for program in programs {
        let replay = &diagnosed(&program, &["--what-if", "no-sync"])["replay"];
        let off = replay["median_error"].as_f64().expect("a part of a step");
        // The replay does not model connections that streams share, so it is close there, but not exact.
        let is_shared = program.contains("connections");
        let most = if is_shared { 0.01 } else { REPLAY_OFF };
        assert!(off <= most, "{program}: {off}");
    }
}
