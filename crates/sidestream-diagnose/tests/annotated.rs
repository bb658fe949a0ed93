//! Tests the trace for a viewer: rows that Perfetto accepts, and findings at their place.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use sidestream_diagnose::{Limits, Options, Report, annotated, read, read_json, time};

fn example(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    let trace = read(&path, &Limits::default(), &mut |_, _| ()).expect("a trace");
    Report::of(trace, &Options::default())
}

/// A written trace, by its rows.
struct Written {
    about: Value,
    /// Slices by process and row, in the order of the file.
    rows: BTreeMap<(String, String), Vec<Slice>>,
    arrows: usize,
}

#[derive(Clone, Debug)]
struct Slice {
    start_ns: u64,
    end_ns: u64,
    name: String,
    args: Value,
}

/// Writes a report, and checks the result against the rules of the format: all is JSON, each row has a process and a name,
/// slices follow each other or nest, arrows begin and end in slices.
#[track_caller]
fn written(report: &Report) -> Written {
    let mut bytes = Vec::new();
    annotated("x.json", report, &mut bytes).expect("memory takes everything");
    let mut file: Value = serde_json::from_slice(&bytes).expect("JSON");
    let events = file["traceEvents"].take();
    let events = events.as_array().expect("a list");
    let (mut processes, mut threads) = (BTreeMap::new(), BTreeMap::new());
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let (pid, tid) = (event["pid"].as_u64(), event["tid"].as_u64());
        let name = event["args"]["name"].as_str().unwrap_or("").to_owned();
        match event["name"].as_str() {
            Some("process_name") => drop(processes.insert(pid, name)),
            Some("thread_name") => assert!(threads.insert((pid, tid), name).is_none()),
            Some("process_sort_index") => assert!(event["args"]["sort_index"].is_i64()),
            other => panic!("{other:?}"),
        }
    }
    let mut by_place: BTreeMap<_, Vec<Slice>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let start_ns = nanoseconds(&event["ts"]);
        let slice = Slice {
            start_ns,
            end_ns: start_ns + nanoseconds(&event["dur"]),
            name: event["name"].as_str().expect("a name").to_owned(),
            args: event["args"].clone(),
        };
        let place = (event["pid"].as_u64(), event["tid"].as_u64());
        by_place.entry(place).or_default().push(slice);
    }
    let mut arrows = 0;
    for event in events
        .iter()
        .filter(|event| event["ph"] == "s" || event["ph"] == "f")
    {
        let place = (event["pid"].as_u64(), event["tid"].as_u64());
        let at_ns = nanoseconds(&event["ts"]);
        let slices = &by_place[&place];
        assert!(
            slices
                .iter()
                .any(|s| s.start_ns <= at_ns && at_ns <= s.end_ns)
        );
        arrows += usize::from(event["ph"] == "f");
    }
    let rows = by_place.into_iter().map(|(place, slices)| {
        let mut open: Vec<u64> = Vec::new();
        for slice in &slices {
            while open.last().is_some_and(|end_ns| *end_ns <= slice.start_ns) {
                open.pop();
            }
            let fits = open.last().is_none_or(|end_ns| slice.end_ns <= *end_ns);
            assert!(fits, "{slice:?} lies across the one before");
            open.push(slice.end_ns);
        }
        (
            (processes[&place.0].clone(), threads[&place].clone()),
            slices,
        )
    });
    Written {
        rows: rows.collect(),
        about: file["diagnose"].take(),
        arrows,
    }
}

/// Converts microseconds with three decimals to nanoseconds.
fn nanoseconds(value: &Value) -> u64 {
    (value.as_f64().expect("a time") * 1e3).round() as u64
}

impl Written {
    fn row(&self, process: &str, row: &str) -> &[Slice] {
        &self.rows[&(process.to_owned(), row.to_owned())]
    }

    /// Returns all slices of processes whose names start with this.
    fn below(&self, process: &str) -> Vec<&Slice> {
        let rows = self
            .rows
            .iter()
            .filter(|(place, _)| place.0.starts_with(process));
        rows.flat_map(|(_, slices)| slices).collect()
    }
}

#[test]
fn findings_idle_time_and_predictions_are_written_beside_the_trace() {
    let report = example("infer_pageable.before");
    let written = written(&report);
    assert_eq!(written.about["whole"], true);
    // The trace itself: its work, its calls, an arrow for each.
    let gpu = written.row("GPU 0 NVIDIA H200", "stream 7");
    assert_eq!(gpu.len(), 372);
    assert_eq!(written.arrows, 372);
    assert!(written.below("host process").len() > 1_000);
    // A finding is where its evidence is: on the copy itself.
    let found = written.row("findings", "PAGEABLE_COPY");
    assert_eq!(found.len(), report.findings[0].evidence.len());
    for slice in found {
        let copy = gpu.iter().find(|copy| copy.start_ns == slice.start_ns);
        let copy = copy.expect("the copy");
        assert_eq!(
            (copy.end_ns, &*copy.name),
            (slice.end_ns, "Memcpy HtoD (Pageable -> Device)")
        );
        assert_eq!(slice.args["text"], report.findings[0].text);
        assert!(slice.args["saving_ns"]["likely"].as_u64() > Some(6_000_000));
    }
    // Idle time is complete, and no work runs in it.
    let idle = written.row("idle by cause", "GPU 0 idle");
    for (cause, ns) in &report.devices[0].1.by_cause {
        let slices = idle.iter().filter(|slice| slice.name == cause.as_str());
        let sum: u64 = slices.map(|slice| slice.end_ns - slice.start_ns).sum();
        assert_eq!(sum, *ns, "{}", cause.as_str());
    }
    for gap in idle {
        let across = |work: &&Slice| work.start_ns < gap.end_ns && gap.start_ns < work.end_ns;
        assert!(gpu.iter().find(across).is_none(), "{gap:?}");
    }
    // The predicted step begins where the measured one does, and is shorter.
    let step = &written.row("findings", "median step")[0];
    let replay = report.replay.as_ref().expect("a replay");
    for prediction in &replay.predictions {
        let changes: Vec<String> = prediction.changes.iter().map(|c| c.to_string()).collect();
        let name = format!("what-if {}: ", changes.join(","));
        let slices = written.below(&name);
        assert!(slices.len() > 10, "{name}");
        let end_ns = step.start_ns + prediction.timeline.length_ns;
        for slice in slices {
            assert!(
                step.start_ns <= slice.start_ns && slice.end_ns <= end_ns,
                "{slice:?}"
            );
        }
    }
    let (likely, measured) = (
        time(replay.predictions[0].likely_ns),
        time(replay.unprofiled_ns),
    );
    let pinned = format!("what-if pinned: {likely} instead of {measured}");
    let pinned = written.row(&pinned, "predicted step");
    assert_eq!(pinned[0].args["likely_ns"], replay.predictions[0].likely_ns);
}

#[test]
fn every_example_is_written_by_the_rules() {
    for name in [
        "blocking_download.before",
        "branches_long.after",
        "launch_bound.after",
    ] {
        let report = example(name);
        let written = written(&report);
        let last_ns = written.about["start_ns"].as_i64().expect("a time");
        assert_eq!(last_ns, report.excerpt.start_ns, "{name}");
        let length_ns = report.excerpt.end_ns.abs_diff(report.excerpt.start_ns);
        let trace = written
            .below("GPU")
            .into_iter()
            .chain(written.below("host"));
        for slice in trace
            .chain(written.below("idle"))
            .chain(written.below("findings"))
        {
            assert!(slice.end_ns <= length_ns, "{name} {slice:?}");
        }
    }
}

fn long(steps: usize) -> Report {
    let mut rows = Vec::new();
    for step in 0..steps {
        let start = 1_000 * step;
        rows.push(
            json!({"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": start,
                         "name": format!("ProfilerStep#{step}"), "dur": 1000}),
        );
        for at in 0..100 {
            let (ts, number) = (start + 10 * at, 100 * step + at + 1);
            rows.push(
                json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel",
                             "pid": 1, "tid": 1, "ts": ts, "dur": 2,
                             "args": {"correlation": number}}),
            );
            rows.push(
                json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7,
                             "ts": ts + 3, "dur": 5,
                             "args": {"device": 0, "stream": 7, "correlation": number}}),
            );
        }
    }
    let text = json!({"traceEvents": rows}).to_string();
    let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

#[test]
fn a_long_trace_is_written_around_its_median_step() {
    let report = long(400);
    let written = written(&report);
    assert_eq!(written.about["whole"], false);
    let works = written.row("GPU 0", "stream 7").len();
    assert!((200..=300).contains(&works), "{works}");
    let (start_ns, end_ns) = report.excerpt.step_ns.expect("a step");
    assert_eq!(end_ns.abs_diff(start_ns), 1_000_000);
    assert!(report.excerpt.start_ns <= start_ns && end_ns <= report.excerpt.end_ns);
    // Findings elsewhere are listed nevertheless.
    let codes = report.findings.iter().map(|finding| finding.code.as_str());
    for code in codes {
        assert!(!written.row("findings", code).is_empty(), "{code}");
    }
    assert_eq!(written_works(&long(3)), 300);
}

fn written_works(report: &Report) -> usize {
    written(report).row("GPU 0", "stream 7").len()
}

#[test]
fn work_that_overlaps_other_work_goes_to_a_further_row() {
    let mut rows = Vec::new();
    for at in 0..80_000u64 {
        let (ts, dur) = (at * 3, 7 + at % 5);
        rows.push(
            json!({"ph": "X", "cat": "kernel", "name": format!("<k>{at}"), "pid": 0, "tid": 7,
                         "ts": ts, "dur": dur, "args": {"device": 0, "stream": 7}}),
        );
    }
    let text = json!({"traceEvents": rows}).to_string();
    let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
    let written = written(&Report::of(trace, &Options::default()));
    assert_eq!(written.about["left_out"], 0);
    assert!(!written.row("GPU 0", "stream 7 (2)").is_empty());
    // There are never more rows than a viewer can show easily.
    let works = written.below("GPU").len();
    assert!((40_000..=50_000).contains(&works), "{works}");
}
