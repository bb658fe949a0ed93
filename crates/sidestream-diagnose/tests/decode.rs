//! Tests loops of an engine that decodes with CUDA graphs, recorded on an H200 with a planted fault each and timed before and
//! after its fix (`crates/sidestream-py/benches/decode_gpu.py`): what counts as an iteration, what comes first, and what the
//! fix gains.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sidestream_diagnose::{Change, Limits, Options, Report, StepsBy, read, read_json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/decode")
}

fn report(name: &str, what_if: Option<&str>) -> Report {
    let path = folder().join(format!("{name}.before.json.gz"));
    let trace = read(&path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    let set = what_if.map(|set| vec![Change::set(set).expect("changes")]);
    let options = Options {
        what_if: set,
        ..Options::default()
    };
    Report::of(trace, &options)
}

#[test]
fn the_cause_of_each_loop_comes_first_and_its_gain_is_near() {
    let text = std::fs::read(folder().join("truth.json")).expect("a file");
    let truth: Value = serde_json::from_slice(&text).expect("JSON");
    let loops = truth["loops"].as_array().expect("a list");
    let (mut first, mut near, mut inside) = (0, 0, 0);
    for one in loops {
        let name = one["loop"].as_str().expect("a name");
        let ms = |key: &str| one[key].as_f64().expect("a time");
        // The fixed twin of two faults has both changes.
        let set = (name == "two_faults").then_some("pinned,async-output");
        let report = report(name, set);
        let finding = &report.findings[0];
        let codes = one["codes"].as_array().expect("codes");
        let is_first = codes.contains(&json!(finding.code.as_str()));
        let replay = report.replay.as_ref().expect("a replay");
        let gain = match set {
            Some(_) => 1.0 - replay.predictions[0].likely_ns as f64 / replay.unprofiled_ns as f64,
            None => finding.saving_ns.likely as f64 / replay.unprofiled_ns as f64,
        };
        let of_all = replay.predictions.iter();
        let mut of_all = of_all.filter(|p| p.changes == finding.changes || set.is_some());
        let [low_ms, high_ms] = match of_all.next_back() {
            Some(prediction) => [prediction.low_ns, prediction.high_ns].map(|ns| ns as f64 / 1e6),
            None => panic!("{name}: {:?} is not predicted", finding.changes),
        };
        let measured = 1.0 - ms("after_ms") / ms("before_ms");
        let off = gain / measured - 1.0;
        println!(
            "{name}: {} {}, gain {:.1} %, measured {:.1} %, {:+.1} % off, {} steps by {}, {:.3} to {:.3} ms",
            finding.code.as_str(),
            if is_first { "first" } else { "WRONG" },
            100.0 * gain,
            100.0 * measured,
            100.0 * off,
            report.steps.steps.len(),
            report.steps.by.as_str(),
            low_ms,
            high_ms
        );
        inside += usize::from((low_ms..=high_ms).contains(&ms("after_ms")));
        first += usize::from(is_first);
        near += usize::from(off.abs() <= 0.15);
    }
    assert_eq!((loops.len(), first, near), (7, 7, 7));
    assert!(inside >= 5, "{inside}");
}

#[test]
fn an_iteration_is_from_launch_to_launch_or_what_the_engine_marks() {
    for (name, by) in [
        ("sampling_waited_for", StepsBy::Annotation),
        ("tables_on_the_compute_stream", StepsBy::Annotation),
        ("padding", StepsBy::Annotation),
        // The range around the engine's work between two launches does not mark a step.
        ("detokenising", StepsBy::GraphLaunch),
        ("two_faults", StepsBy::GraphLaunch),
    ] {
        let report = report(name, None);
        assert_eq!(
            (report.steps.by, report.steps.steps.len()),
            (by, 24),
            "{name}"
        );
    }
}

#[test]
fn the_range_between_the_launches_is_named() {
    let text = &report("detokenising", None).findings[0].text;
    assert!(text.contains("detokenize"), "{text}");
    let text = &report("padding", None).findings[0].text;
    assert!(
        text.contains("of all idle time lies in pad_inputs"),
        "{text}"
    );
}

/// Returns the report on iterations of an engine, each of `graphs` graphs with eager kernels between them, and a download after
/// the last if `downloads` is set.
fn engine(iterations: usize, graphs: usize, downloads: bool) -> Report {
    let (mut events, mut now, mut number) = (Vec::new(), 1_000, 0);
    let mut call = |events: &mut Vec<Value>,
                    name: &str,
                    category: &str,
                    work: &str,
                    count: usize,
                    now: &mut u64| {
        number += 1;
        events.push(json!({"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": *now, "dur": 4,
                           "args": {"correlation": number}}));
        for at in 0..count as u64 {
            events.push(json!({"ph": "X", "cat": category, "name": work, "pid": 0, "tid": 7, "ts": *now + 10 + 20 * at, "dur": 18,
                               "args": {"device": 0, "stream": 7, "correlation": number, "bytes": 64}}));
        }
        *now += 20 + 20 * count as u64;
    };
    for _ in 0..iterations {
        call(
            &mut events,
            "cudaMemcpyAsync",
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            1,
            &mut now,
        );
        for _ in 0..graphs {
            call(
                &mut events,
                "cudaGraphLaunch",
                "kernel",
                "node",
                6,
                &mut now,
            );
            call(
                &mut events,
                "cudaLaunchKernel",
                "kernel",
                "attention",
                1,
                &mut now,
            );
        }
        if downloads {
            call(
                &mut events,
                "cudaMemcpyAsync",
                "gpu_memcpy",
                "Memcpy DtoH (Device -> Pinned)",
                1,
                &mut now,
            );
        }
    }
    let text = json!({"traceEvents": events}).to_string();
    let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

#[test]
fn graphs_of_one_iteration_belong_together() {
    for (graphs, downloads, steps, gpu_ops) in [
        (1, true, 9, 9),
        (4, true, 9, 30),
        // Without any download only the next launch ends an iteration.
        (1, false, 9, 8),
    ] {
        let report = engine(9, graphs, downloads);
        assert_eq!(report.steps.by, StepsBy::GraphLaunch);
        assert_eq!(report.steps.steps.len(), steps, "{graphs} {downloads}");
        assert_eq!(
            report.steps.steps[4].gpu_ops, gpu_ops,
            "{graphs} {downloads}"
        );
    }
}
