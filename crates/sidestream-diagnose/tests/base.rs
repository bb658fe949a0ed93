//! Tests the time of a step without the profiler: measured, written into the trace, read, reported, and used.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sidestream_diagnose::{Base, Limits, Options, Report, html, read_json, text};

/// Examples where the host decides how long a step takes, and where the uncertainty is mostly that of the profiler's cost.
const OF_THE_HOST: [&str; 5] = [
    "branches_tiny.before",
    "legacy.before",
    "mask.before",
    "sync_each_layer.before",
    "encoder_decoder.before",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces")
}

/// Returns an example with this as its first member.
fn with(name: &str, unprofiled: &str) -> Vec<u8> {
    let packed = std::fs::read(folder().join(format!("{name}.json.gz"))).expect("an example");
    let mut whole = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&packed[..]);
    unpacked.read_to_end(&mut whole).expect("it is whole");
    let brace = whole.iter().position(|b| *b == b'{').expect("an object");
    let mut trace = whole[..=brace].to_vec();
    if !unprofiled.is_empty() {
        trace.extend_from_slice(format!("\"sidestream.unprofiled\": {unprofiled},").as_bytes());
    }
    trace.extend_from_slice(&whole[brace + 1..]);
    trace
}

fn report(trace: &[u8], changes: &str) -> Report {
    let changes = (!changes.is_empty()).then(|| {
        let changes = changes.split(',').map(|c| c.parse().expect("a change"));
        vec![changes.collect()]
    });
    let options = Options {
        what_if: changes,
        ..Options::default()
    };
    Report::of(
        read_json(trace, &Limits::default()).expect("a trace"),
        &options,
    )
}

/// Returns windows with this median, and the usual spread.
fn windows(median_ns: f64) -> Value {
    json!({"median_ns": median_ns as u64, "mean_ns": median_ns as u64, "quartiles_ns": [(0.995 * median_ns) as u64, (1.005 * median_ns) as u64],
           "edge_ns": 0, "drift": 0.004, "agreed": true, "window_steps": 20, "dropped": 3, "taken": 5, "after_profiler": false})
}

/// Returns the windows with another value for one key.
fn but(key: &str, value: Value) -> String {
    let mut windows = windows(12_950_000.0);
    windows[key] = value;
    windows.to_string()
}

#[test]
fn a_step_that_was_timed_makes_predictions_nearer_and_narrower() {
    let truth = std::fs::read(folder().join("../truth.json")).expect("the measured times");
    let truth: Value = serde_json::from_slice(&truth).expect("JSON");
    let time_ns = |run: &Value| {
        let run = run.as_str().expect("the name of a run");
        1e6 * truth["runs"][run]["step_ms"].as_f64().expect("a time")
    };
    let (mut offs, mut widths, mut held) = ([vec![], vec![]], [vec![], vec![]], [0, 0]);
    for pair in truth["pairs"].as_array().expect("pairs") {
        let name = pair["before"].as_str().expect("a name");
        let changes = pair["changes"].as_array().expect("changes").iter();
        let changes: Vec<&str> = changes.filter_map(Value::as_str).collect();
        let (before_ns, after_ns) = (time_ns(&pair["before"]), time_ns(&pair["after"]));
        let timed = windows(before_ns).to_string();
        for (at, stated) in ["", &timed].into_iter().enumerate() {
            let replay = report(&with(name, stated), &changes.join(",")).replay;
            let replay = replay.expect("a replay");
            assert_eq!(matches!(replay.base, Base::Measured(_)), at == 1, "{name}");
            if at == 1 {
                // The time without the profiler is the timed one, regardless of the estimate from the trace.
                let off_ns = replay.unprofiled_ns.abs_diff(before_ns as u64);
                assert!(off_ns <= 1, "{name}: {}", replay.unprofiled_ns);
            }
            let predicted = &replay.predictions[0];
            let (low_ns, high_ns) = (predicted.low_ns as f64, predicted.high_ns as f64);
            let likely_ns = predicted.likely_ns as f64;
            offs[at].push((likely_ns / after_ns - 1.0).abs());
            if OF_THE_HOST.contains(&name) {
                widths[at].push((high_ns - low_ns) / likely_ns);
            }
            let is_inside = (low_ns..=high_ns).contains(&after_ns);
            held[at] += usize::from(is_inside);
            println!(
                "{name}: base {:.3} of {:.3}, predicted {:.3} ({:.3} to {:.3}) of {:.3}, {:+.1} %{}",
                replay.unprofiled_ns as f64 / 1e6,
                before_ns / 1e6,
                likely_ns / 1e6,
                low_ns / 1e6,
                high_ns / 1e6,
                after_ns / 1e6,
                100.0 * (likely_ns / after_ns - 1.0),
                if is_inside { "" } else { ", outside" }
            );
        }
    }
    let median = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let [off, off_timed] = offs.each_mut().map(median);
    let [width, width_timed] = widths.each_mut().map(median);
    println!(
        "off by {:.1} % and {:.1} % in the median, inside {held:?}; where the host decides {:.1} % and {:.1} % wide",
        100.0 * off,
        100.0 * off_timed,
        100.0 * width,
        100.0 * width_timed
    );
    assert!(off_timed < off && held[1] >= held[0]);
    assert!(width_timed < 0.6 * width);
}

#[test]
fn the_report_says_which_step_predictions_start_from() {
    let own = report(&with("mask.before", &windows(673_200.0).to_string()), "");
    let said = text("mask.json", &own, 80);
    let measured = "measured without the profiler: median 673.2 µs, quartiles 669.8 µs and 676.6 µs (5 windows of 20 steps)";
    assert!(said.contains(&format!("        {measured}\n")), "{said}");
    assert!(
        said.contains(
            "the figures below refer to the step as it was measured without the profiler\n"
        )
    );
    assert!(!said.contains("an estimate"), "{said}");
    assert!(
        html("mask.json", &own)
            .contains(&format!("The figures below refer to the step {measured}."))
    );
    let json = own.json();
    assert_eq!(json["unprofiled"], windows(673_200.0));
    assert_eq!(json["replay"]["base"], "measured");
    // In a trace without a measurement, the time without the profiler is an estimate with a range.
    let others = report(&with("mask.before", ""), "");
    let said = text("mask.json", &others, 80);
    assert!(
        said.contains("to which the figures below refer: an estimate, from "),
        "{said}"
    );
    assert_eq!(others.json()["unprofiled"], Value::Null);
    assert_eq!(others.json()["replay"]["base"], "estimated");
}

#[test]
fn doubts_about_the_windows_are_reported() {
    let said = |windows: &str| {
        text(
            "x",
            &report(&with("infer_pageable.before", windows), ""),
            80,
        )
    };
    let drifted = said(&but("drift", json!(0.072)));
    let range =
        "; it became 7.2 % longer meanwhile, and is taken as a range, from 12.02 ms to 13.88 ms\n";
    assert!(drifted.contains(range), "{drifted}");
    assert!(said(&but("drift", json!(-0.072))).contains("; it became 7.2 % shorter meanwhile, "));
    assert!(!said(&but("drift", json!(0.05))).contains("meanwhile"));
    assert!(
        said(&but("agreed", json!(false)))
            .contains("; no two windows in a row were within 3 % of each other")
    );
    assert!(
        said(&but("after_profiler", json!(true)))
            .contains("; a profiler had run in the program before")
    );
}

#[test]
fn steps_that_drifted_are_a_range() {
    let of = |drift: f64| {
        let trace = with("infer_pageable.before", &but("drift", json!(drift)));
        report(&trace, "pinned").replay.expect("a replay")
    };
    let (steady, drifted) = (of(0.01), of(0.08));
    assert_eq!(steady.unprofiled_ns, drifted.unprofiled_ns);
    assert_eq!(drifted.unprofiled_between_ns, (11_914_000, 13_986_000));
    let width = |replay: &sidestream_diagnose::Replay| {
        let predicted = &replay.predictions[0];
        predicted.high_ns - predicted.low_ns
    };
    assert!(width(&drifted) > width(&steady));
}

/// The trace states a time that its recorded steps cannot have had without the profiler.
#[test]
fn a_time_that_the_recorded_steps_contradict_is_left_out() {
    for (median_ns, is_used) in [(13e6, true), (6e6, false), (30e6, false)] {
        let report = report(
            &with("infer_pageable.before", &windows(median_ns).to_string()),
            "",
        );
        let mut warnings = report.warnings.iter();
        let warned = warnings.find(|warning| warning.code == "BASE");
        let replay = report.replay.as_ref().expect("a replay");
        assert_eq!(
            matches!(replay.base, Base::Measured(_)),
            is_used,
            "{median_ns}"
        );
        assert_eq!(warned.is_none(), is_used, "{median_ns}");
        if let Some(warned) = warned {
            let why = "was timed before the profiler started is left out of the predictions: the steps that were recorded take 1";
            assert!(warned.text.contains(why), "{warned}");
            assert!(text("x", &report, 80).contains("an estimate, from "));
        }
    }
}

#[test]
fn damage_is_named_and_left_out() {
    let long = but("median_ns", json!(1)).replace(":1,", &format!(":{},", "9".repeat(400)));
    let cases: Vec<(String, &str)> = vec![
        ("null".to_owned(), "it is not an object"),
        ("[]".to_owned(), "it is not an object"),
        ("\"5 ms\"".to_owned(), "it is not an object"),
        ("NaN".to_owned(), "it is not an object"),
        ("{}".to_owned(), "its median_ns is not a time"),
        ("{\"median_ns\": NaN}".to_owned(), "it is not JSON"),
        (long, "it is not JSON"),
        (but("median_ns", json!(-5)), "its median_ns is not a time"),
        (
            but("median_ns", json!(1e300)),
            "its median_ns is not a time",
        ),
        (but("median_ns", json!("5")), "its median_ns is not a time"),
        (
            but("median_ns", json!(u64::MAX)),
            "its median_ns is not a time",
        ),
        (but("median_ns", json!(0)), "its median is not a time"),
        (
            but("quartiles_ns", json!([1])),
            "its third quartile is not a time",
        ),
        (
            but("quartiles_ns", json!({"low": 1})),
            "its first quartile is not a time",
        ),
        (
            but("quartiles_ns", json!([2, 1])),
            "its median is not between its quartiles",
        ),
        (but("mean_ns", json!(-1)), "its mean_ns is not a time"),
        (but("edge_ns", json!([])), "its edge_ns is not a time"),
        (but("drift", json!("much")), "its drift is not a number"),
        (
            but("drift", json!(-1e308)),
            "its drift is more than the whole",
        ),
        (but("agreed", json!(1)), "its agreed is not true or false"),
        (but("window_steps", json!(0)), "it covers no steps"),
        (but("taken", json!(-3)), "its taken is not a count"),
        (
            but("dropped", json!(u64::MAX)),
            "its dropped is not a count",
        ),
        (
            but("after_profiler", Value::Null),
            "its after_profiler is not true or false",
        ),
    ];
    for (stated, why) in cases {
        let report = report(&with("mask.before", &stated), "");
        let named =
            format!("the step without the profiler that the trace states is left out, since {why}");
        let warnings: Vec<&str> = report
            .warnings
            .iter()
            .map(|warning| &*warning.text)
            .collect();
        assert!(warnings.contains(&&*named), "{stated}: {warnings:?}");
        assert_eq!(report.base, Base::Estimated, "{stated}");
        assert!(
            text("x", &report, 80).contains("an estimate, from "),
            "{stated}"
        );
    }
}

#[test]
fn extreme_values_predict_nothing_absurd() {
    for (median_ns, quartiles_ns, edge_ns) in [
        (1u64, [0, 86_400_000_000_000u64], 86_400_000_000_000u64),
        (86_400_000_000_000, [0, 86_400_000_000_000], 0),
        (12_950_000, [0, 86_400_000_000_000], 86_400_000_000_000),
    ] {
        let mut stated = windows(12_950_000.0);
        stated["median_ns"] = median_ns.into();
        stated["quartiles_ns"] = quartiles_ns.to_vec().into();
        stated["edge_ns"] = edge_ns.into();
        let report = report(&with("mask.before", &stated.to_string()), "");
        for prediction in report.replay.iter().flat_map(|replay| &replay.predictions) {
            assert!(prediction.low_ns <= prediction.likely_ns, "{stated}");
            assert!(prediction.likely_ns <= prediction.high_ns, "{stated}");
        }
    }
}
