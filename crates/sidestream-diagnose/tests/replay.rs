//! Replays of traces of an H200, and predictions against what was measured after the change.
//!
//! `truth.json` beside the traces has the time of a step without the profiler.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sidestream_diagnose::{Change, Limits, Options, Report, read};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces")
}

fn report(path: &Path, changes: &str) -> Report {
    let changes = changes.split(',').map(|c| c.parse().expect("a change"));
    let options = Options {
        what_if: Some(vec![changes.collect()]),
        ..Options::default()
    };
    let trace = read(path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    Report::of(trace, &options)
}

fn measured_ns(run: &str) -> f64 {
    let text = std::fs::read(folder().join("truth.json")).expect("the measured times");
    let truth: Value = serde_json::from_slice(&text).expect("JSON");
    truth["runs"][run]["step_ms"].as_f64().expect("a time") * 1e6
}

/// How far a prediction is from what was measured, as a part of that.
#[track_caller]
fn check(before: &str, changes: &str, after: &str) {
    let report = report(&folder().join(format!("{before}.json.gz")), changes);
    let replay = report.replay.expect("a replay");
    assert!(replay.error() < 0.03, "{before}: {}", replay.error());
    let [prediction] = &replay.predictions[..] else {
        panic!("one was asked for: {:?}", replay.predictions);
    };
    let measured = measured_ns(after);
    let error = (prediction.likely_ns as f64 - measured).abs() / measured;
    println!("{before} with {changes}: {:.1} % off", 100.0 * error);
    assert!(error < 0.12, "{before} with {changes}: {error}");
    assert!(
        prediction.low_ns <= prediction.likely_ns && prediction.likely_ns <= prediction.high_ns
    );
}

#[test]
fn predictions_are_near_what_was_measured_afterwards() {
    check(
        "infer_pageable.before",
        "pinned",
        "infer_pageable.pinned_only",
    );
    let ring = "pinned,prefetch=2,no-sync";
    check("infer_pageable.before", ring, "infer_pageable.after");
    check("infer_pageable.pinned_only", ring, "infer_pageable.after");
    check("launch_bound.before", "graphs", "launch_bound.after");
    check("blocking_download.before", ring, "blocking_download.after");
    check("copy_bound.before", "prefetch=2", "copy_bound.after");
    check(
        "branches_long.before",
        "second-stream",
        "branches_long.after",
    );
}

#[test]
fn what_was_done_already_is_worth_nothing_more() {
    for name in [
        "infer_pageable.after",
        "blocking_download.after",
        "copy_bound.after",
    ] {
        let path = folder().join(format!("{name}.json.gz"));
        for changes in ["pinned", "prefetch=2", "no-sync", "graphs", "workers=4"] {
            let replay = report(&path, changes).replay.expect("a replay");
            let likely = replay.predictions[0].likely_ns as f64;
            let ratio = likely / replay.measured_ns as f64;
            assert!((0.95..1.05).contains(&ratio), "{name} {changes}: {ratio}");
        }
    }
}

#[test]
fn replays_of_other_traces_are_near_too() {
    let folder = std::env::var_os("SIDESTREAM_PUBLIC_TRACES");
    let Some(folder) = folder.map(PathBuf::from).filter(|folder| folder.exists()) else {
        println!("SIDESTREAM_PUBLIC_TRACES names no folder with traces of other projects");
        return;
    };
    for name in [
        "hta_a100_4stream_pinned_overlap.json.gz",
        "kineto2021_v100_resnet50_workers0.pt.trace.json.gz",
        "tracelens_b200_eager_launch_bound.json.gz",
    ] {
        let replay = report(&folder.join(name), "pinned")
            .replay
            .expect("a replay");
        println!("{name}: {:.2} % off", 100.0 * replay.error());
        assert!(replay.is_ok(), "{name}: {}", replay.error());
    }
}

#[test]
fn changes_are_written_as_they_are_read() {
    for text in [
        "pinned",
        "prefetch=3",
        "no-sync",
        "graphs",
        "workers=8",
        "second-stream",
    ] {
        let change: Change = text.parse().expect("a change");
        assert_eq!(change.to_string(), text);
    }
    for text in [
        "",
        "pin",
        "prefetch=0",
        "prefetch=x",
        "workers=-1",
        "graphs=2",
        "workers=9999999",
    ] {
        let error = text.parse::<Change>().expect_err(text);
        assert!(error.to_string().contains("there is no change"), "{text}");
    }
}
