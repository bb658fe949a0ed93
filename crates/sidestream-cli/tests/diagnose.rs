//! `sidestream diagnose` on traces of an H200 that are in the repository, and on files that are none.

mod command;

use std::path::{Path, PathBuf};

use command::sidestream;
use serde_json::Value;

fn trace(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    path.to_str().expect("a path in letters").to_owned()
}

fn json(name: &str) -> Value {
    let ran = sidestream(&["diagnose", "--json", &trace(name)]);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{name}");
    serde_json::from_str(&ran.out).expect("one line of JSON")
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter_map(|f| f["code"].as_str()).collect()
}

/// What a trace is said to suffer from, the most valuable first.
#[track_caller]
fn check(name: &str, expected: &[&str]) {
    assert_eq!(codes(&json(name)), expected, "{name}");
}

#[test]
fn each_trace_suffers_from_what_was_changed_afterwards() {
    check(
        "infer_pageable.before",
        &["PAGEABLE_COPY", "COPY_ON_COMPUTE_STREAM", "BLOCKING_COPY"],
    );
    check("infer_pageable.pinned_only", &["COPY_ON_COMPUTE_STREAM"]);
    check("launch_bound.before", &["LAUNCH_BOUND"]);
    check("copy_bound.before", &["COPY_ON_COMPUTE_STREAM"]);
    check("branches_long.before", &["SERIAL_BRANCHES"]);
    let download = json("blocking_download.before");
    assert_eq!(codes(&download)[0], "PAGEABLE_COPY");
    assert!(codes(&download).contains(&"BLOCKING_COPY"));
}

#[test]
fn after_the_change_there_is_nothing_to_gain() {
    for name in [
        "infer_pageable",
        "launch_bound",
        "blocking_download",
        "branches_long",
    ] {
        check(&format!("{name}.after"), &["NOTHING_TO_GAIN"]);
    }
    check("copy_bound.after", &["COPY_BOUND", "NOTHING_TO_GAIN"]);
}

#[test]
fn idle_time_is_given_to_causes_once() {
    for name in [
        "blocking_download.before",
        "infer_pageable.before",
        "launch_bound.before",
        "launch_bound.after",
    ] {
        let report = json(name);
        for device in report["devices"].as_array().expect("a list") {
            let causes = device["idle_by_cause"].as_object().expect("an object");
            let sum: u64 = causes.values().filter_map(Value::as_u64).sum();
            assert_eq!(Some(sum), device["idle_ns"].as_u64(), "{name}");
            assert!(causes.get("UNATTRIBUTED").is_none(), "{name}");
        }
    }
}

#[test]
fn no_saving_leads_below_the_floor() {
    for name in [
        "blocking_download.before",
        "copy_bound.before",
        "launch_bound.before",
    ] {
        let report = json(name);
        let step_ns = report["steps"]["median_ns"].as_u64().expect("steps");
        let kernel_ns = report["devices"][0]["kernel_ns"]
            .as_u64()
            .expect("a number");
        for finding in report["findings"].as_array().expect("a list") {
            let saving = &finding["saving_ns"];
            let of = |key: &str| saving[key].as_u64().expect("a number");
            assert!(of("low") <= of("likely") && of("likely") <= of("high"));
            assert!(of("high") <= step_ns - kernel_ns / 12, "{name} {finding}");
        }
    }
}

#[test]
fn a_change_that_is_asked_for_is_predicted() {
    let path = trace("copy_bound.before");
    let ran = sidestream(&["diagnose", "--json", "--what-if", "prefetch=2", &path]);
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["replay"]["ok"], true);
    let predictions = report["what_if"].as_array().expect("a list");
    assert_eq!(predictions.len(), 1);
    assert_eq!(predictions[0]["changes"][0], "prefetch=2");
    let ratio = predictions[0]["ratio"].as_f64().expect("a number");
    // It was 2.79 ms instead of 4.64 ms.
    assert!((0.57..0.63).contains(&ratio), "{ratio}");
    let ran = sidestream(&["diagnose", "--what-if", "faster", &path]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("there is no change `faster`"),
        "{}",
        ran.err
    );
}

#[test]
fn the_report_for_people_has_the_worst_first() {
    let ran = sidestream(&["diagnose", &trace("copy_bound.before")]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let lines: Vec<&str> = ran.out.lines().skip(1).collect();
    assert_eq!(
        lines[..4],
        [
            "device  0 (NVIDIA H200): 72 operations in 55.88 ms, idle 0.3 %",
            "        copies with the host 33.41 ms, 0.0 % of it under kernels",
            "steps   12 by profiler_step, 4.66 ms each (from 4.65 ms to 4.67 ms)",
            "copies  HtoD pinned: 12, 1849.7 MB in 33.41 ms, 55.4 GB/s",
        ]
    );
    assert!(lines[5].starts_with("COPY_ON_COMPUTE_STREAM  copies of 154.1 MB a step"));
    assert_eq!(
        lines[6].trim(),
        "worth 1.87 ms of a step, between 1.39 ms and 1.87 ms"
    );
}

#[test]
fn the_speed_of_the_link_can_be_stated() {
    let path = trace("infer_pageable.before");
    let ran = sidestream(&["diagnose", "--json", "--link-gbps", "10", &path]);
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["link"]["by"], "stated");
    let assumed = json("infer_pageable.before");
    assert_eq!(assumed["link"]["by"], "assumed");
    let measured = json("copy_bound.before");
    assert_eq!(measured["link"]["by"], "measured");
    let ran = sidestream(&["diagnose", "--link-gbps", "0", &path]);
    assert_eq!(ran.code, 2);
}

#[test]
fn sidestream_reads_the_traces_that_it_writes() {
    let path = file("own.json", "");
    let written = path.to_str().expect("a path in letters");
    let ran = sidestream(&["overlap", "--device", "sim:h200", "--trace", written]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = sidestream(&["diagnose", "--json", written]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let report: Value = serde_json::from_str(&ran.out).expect("one line of JSON");
    assert_eq!(report["source"]["kind"], "sidestream");
    assert_eq!(report["launches"]["orphans"], 0);
}

#[test]
fn a_folder_stands_for_its_traces() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let ran = sidestream(&["diagnose", "--json", folder.to_str().expect("letters")]);
    // One of its files is JSON and no trace.
    assert_eq!(ran.code, 2);
    assert_eq!(ran.out.lines().count(), 38);
    assert!(
        ran.err
            .contains("truth.json: the file is JSON without a member `traceEvents`")
    );
}

#[test]
fn what_is_no_trace_is_refused_by_name() {
    for (name, text, says) in [
        ("empty.json", "", "the file is empty"),
        ("text.json", "hello", "the file is no trace"),
        (
            "cpu.json",
            "{\"traceEvents\": []}",
            "no kernels, copies or memsets",
        ),
    ] {
        let path = file(name, text);
        let ran = sidestream(&["diagnose", path.to_str().expect("letters")]);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{name}");
        let place = format!("diagnose_{name}: ");
        assert!(
            ran.err.contains(&place) && ran.err.contains(says),
            "{}",
            ran.err
        );
    }
    let ran = sidestream(&["diagnose", "is/not/there.json"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err
            .contains("is/not/there.json: the file cannot be read")
    );
}

/// A file of the tests' own.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diagnose_{name}"));
    std::fs::write(&path, text).expect("a file of our own");
    path
}
