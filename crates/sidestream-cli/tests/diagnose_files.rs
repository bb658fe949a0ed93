//! Tests the files that `sidestream diagnose` writes: a page for a browser, a trace for a viewer.

use std::path::{Path, PathBuf};

use crate::command::sidestream;
use serde_json::{Value, json};

fn trace(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    path.to_str().expect("a path in letters").to_owned()
}

/// Returns a path for a file of one test.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diagnose_files_{name}"))
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let ran = sidestream(&[&["diagnose"], args].concat());
    assert_eq!((ran.code, &*ran.out), (2, ""), "{args:?}");
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains(says), "{}", ran.err);
}

#[test]
fn both_files_are_written_besides_the_report_and_replace_what_was_there() {
    let (page, viewer) = (path("both.html"), path("both.json"));
    std::fs::write(&page, "x".repeat(10_000_000)).expect("a file of our own");
    let input = trace("copy_bound.before");
    let plain = sidestream(&["diagnose", &input]);
    let (to_page, to_viewer) = (
        page.to_str().expect("letters"),
        viewer.to_str().expect("letters"),
    );
    let ran = sidestream(&["diagnose", &input, "--html", to_page, "--trace", to_viewer]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert_eq!(ran.out, plain.out);
    let page = std::fs::read_to_string(&page).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<h1>copy_bound.before.json.gz</h1>"));
    let viewer = std::fs::read(&viewer).expect("a trace");
    let viewer: Value = serde_json::from_slice(&viewer).expect("JSON");
    assert!(
        viewer["traceEvents"]
            .as_array()
            .is_some_and(|rows| rows.len() > 100)
    );
}

/// The picture shows the step as measured and as predicted, on one scale: the upload is as long in both.
#[test]
fn a_picture_has_the_measured_and_the_predicted_step() {
    let picture = path("step.svg");
    let to_picture = picture.to_str().expect("letters");
    let input = trace("both_ways.before");
    let ran = sidestream(&["diagnose", &input, "--svg", to_picture]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"));
    let (measured, predicted) = drawn
        .split_once("Predicted with prefetch=2: ")
        .expect("a prediction");
    assert!(measured.contains("Measured: 1.39 ms") && predicted.contains("GPU 0 stream 7"));
    let upload = |part: &str| {
        let (before, _) = part.split_once("Memcpy HtoD").expect("an upload");
        let (_, bar) = before.rsplit_once("<svg x=").expect("its bar");
        let width = bar.split("width=\"").nth(1).expect("its width");
        let width = width.split('"').next().expect("a number");
        width.parse::<f64>().expect("a number")
    };
    let (long, short) = (upload(measured), upload(predicted));
    assert!(
        (long - short).abs() < long / 5.0 && long > 200.0,
        "{long} {short}"
    );
}

#[test]
fn a_line_of_json_goes_with_them_too() {
    let page = path("json.html");
    let to_page = page.to_str().expect("letters");
    let input = trace("copy_bound.before");
    let ran = sidestream(&["diagnose", "--json", &input, "--html", to_page]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 1), "{}", ran.err);
    assert!(page.is_file());
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_trace_is_read() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    for option in ["--html", "--svg", "--trace"] {
        for to in ["no/such/folder/x", folder] {
            let says = format!("{option} {to} cannot be written");
            refused(&["is/not/there.json", option, to], &says);
        }
    }
    for args in [
        "run x.yaml --log",
        "run x.yaml --trace",
        "check x.yaml --trace",
        "overlap --trace",
    ] {
        let args: Vec<&str> = args.split(' ').chain(["no/such/folder/x"]).collect();
        std::fs::write(Path::new(folder).join("x.yaml"), "name: x\nops: []\n").expect("a file");
        let ran = sidestream(&args);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{args:?}");
        assert!(
            ran.err.contains("no/such/folder/x cannot be written"),
            "{}",
            ran.err
        );
    }
    // Checking that a file can be written leaves no file behind.
    let page = path("tried.html");
    let to_page = page.to_str().expect("letters");
    refused(
        &["is/not/there.json", "--html", to_page],
        "is/not/there.json",
    );
    assert!(!page.exists());
}

/// The written file is a complete trace, with the same findings.
#[test]
fn the_written_trace_is_read_again() {
    let viewer = path("again.json");
    let to_viewer = viewer.to_str().expect("letters");
    for name in ["infer_pageable.before", "launch_bound.before"] {
        let input = trace(name);
        let ran = sidestream(&["diagnose", "--json", &input, "--trace", to_viewer]);
        let before: Value = serde_json::from_str(&ran.out).expect("a line of JSON");
        let ran = sidestream(&["diagnose", "--json", to_viewer]);
        let after: Value = serde_json::from_str(&ran.out).expect("a line of JSON");
        for key in [
            "gpu_ops",
            "span_ns",
            "busy_ns",
            "idle_ns",
            "idle_by_cause",
            "overlap_ns",
        ] {
            assert_eq!(
                before["devices"][0][key], after["devices"][0][key],
                "{name} {key}"
            );
        }
        for key in ["steps", "copies", "blocking", "operators"] {
            assert_eq!(before[key], after[key], "{name} {key}");
        }
        // The shape of a kernel is not written, so that savings may differ by their last nanosecond; times count from another
        // start.
        let findings = |report: &Value| -> Vec<Value> {
            let findings = report["findings"].as_array().expect("a list").iter();
            let same = findings.map(|f| json!([f["code"], f["text"], f["share"]]));
            same.collect()
        };
        assert_eq!(findings(&before), findings(&after), "{name}");
    }
}

#[test]
fn files_that_cannot_be_written_are_refused_with_a_reason() {
    let input = trace("copy_bound.before");
    let other = trace("copy_bound.after");
    let ran = sidestream(&["diagnose", &input, &other, "--html", "x.html"]);
    let says = "--html of several traces is a page of the ranks of one run, and no two of these state which rank of the same run they";
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains(says), "{}", ran.err);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let names = files.map(|file| file.expect("a file").file_name());
    let names = names.filter(|name| name.to_string_lossy().contains(".json"));
    refused(
        &[folder.to_str().expect("letters"), "--trace", "x.json"],
        &format!("--trace takes one trace, and {} were named", names.count()),
    );
    refused(
        &[&input, "--html", "x.html", "--trace", "x.html"],
        "--html and --trace both name x.html; name two files",
    );
    refused(
        &[&input, "--svg", "x.svg", "--trace", "x.svg"],
        "--svg and --trace both name x.svg; name two files",
    );
    refused(
        &[&input, &other, "--svg", "x.svg"],
        "--svg takes one trace, and 2 were named",
    );
    let copy = path("copy.json.gz");
    std::fs::copy(&input, &copy).expect("a copy");
    let copy = copy.to_str().expect("letters");
    refused(
        &[copy, "--html", copy],
        "would overwrite the trace; name another file",
    );
}
