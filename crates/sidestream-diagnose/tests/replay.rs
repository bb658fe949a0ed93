//! Tests replays of traces of an H200, and predictions against the measurements after the change.
//!
//! `truth.json` next to the folder of the traces has the time of a step without the profiler.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::fixtures::hostile::Random;
use crate::fixtures::program::{DEFAULT, Program, START_US};
use serde_json::Value;
use sidestream_diagnose::{Change, Limits, Options, Replay, Report, read, read_json};

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

fn truth() -> Value {
    let text = std::fs::read(folder().join("../truth.json")).expect("the measured times");
    serde_json::from_slice(&text).expect("JSON")
}

/// The content of a pair of traces: the change that was made, and the time of a step before and after it without the profiler.
struct Pair {
    before: String,
    changes: String,
    before_ns: f64,
    after_ns: f64,
}

fn pairs() -> Vec<Pair> {
    let truth = truth();
    let time = |run: &Value| {
        let run = run.as_str().expect("the name of a run");
        truth["runs"][run]["step_ms"].as_f64().expect("a time") * 1e6
    };
    let pairs = truth["pairs"].as_array().expect("pairs").iter();
    let changes = |pair: &Value| {
        let changes = pair["changes"].as_array().expect("changes").iter();
        let changes = changes.map(|change| change.as_str().expect("a change"));
        changes.collect::<Vec<_>>().join(",")
    };
    let pair = |pair: &Value| Pair {
        before: pair["before"].as_str().expect("a name").to_owned(),
        changes: changes(pair),
        before_ns: time(&pair["before"]),
        after_ns: time(&pair["after"]),
    };
    pairs.map(pair).collect()
}

/// Returns whether the host decides how long a step takes after the change: then a prediction is judged by its ratio, since how
/// much the profiler slowed down the host is an estimate.
fn is_of_the_host(before: &str) -> bool {
    [
        "branches.before",
        "branches_tiny.before",
        "cpu_augment.before",
        "encoder_decoder.before",
        "infer_pageable.before",
        "launch_bound.before",
        "legacy.before",
        "mask.before",
        "sync_each_layer.before",
    ]
    .contains(&before)
}

#[test]
fn predictions_are_near_what_was_measured_afterwards() {
    let pairs = pairs();
    assert!(pairs.len() >= 22);
    // Widths for steps that the device decides, and for those whose base or link is an estimate.
    let (mut held, mut widths) = (0, [Vec::new(), Vec::new()]);
    println!("before | changes | predicted ms | measured | range | off | ratio | measured");
    let mut wrong = Vec::new();
    for pair in &pairs {
        let Pair {
            before, changes, ..
        } = &pair;
        let report = report(&folder().join(format!("{before}.json.gz")), changes);
        let replay = report.replay.expect("a replay");
        assert!(replay.error() < 0.03, "{before}: {}", replay.error());
        let explained = replay.explained_share;
        assert!(explained >= 0.95, "{before}: {explained} is explained");
        let [prediction] = &replay.predictions[..] else {
            panic!("one was asked for: {:?}", replay.predictions);
        };
        let (low, likely, high) = (prediction.low_ns, prediction.likely_ns, prediction.high_ns);
        assert!(low <= likely && likely <= high, "{before}");
        let off = likely as f64 / pair.after_ns - 1.0;
        let ratio = likely as f64 / replay.unprofiled_ns as f64;
        let true_ratio = pair.after_ns / pair.before_ns;
        let is_inside = (low as f64..=high as f64).contains(&pair.after_ns);
        held += usize::from(is_inside);
        widths[usize::from(is_of_the_host(before))].push((high - low) as f64 / likely as f64);
        println!(
            "{before} | {changes} | {:.3} (base {:.3}, {:.3}) | {:.3} | {:.3} to {:.3}{} | {:+.1} % | {ratio:.3} | {true_ratio:.3} | {:+.1} %",
            likely as f64 / 1e6,
            replay.unprofiled_ns as f64 / 1e6,
            pair.before_ns / 1e6,
            pair.after_ns / 1e6,
            low as f64 / 1e6,
            high as f64 / 1e6,
            if is_inside { "" } else { " (outside)" },
            100.0 * off,
            100.0 * (ratio / true_ratio - 1.0)
        );
        let near = match is_of_the_host(before) {
            // Two streams for small kernels cost this host 0.35 ms, where others took 0.06 ms: it switches between them at each
            // layer, which the trace of one stream does not show. The second stream gains nothing, as predicted.
            true if before == "branches.before" => ratio > 1.0 && ratio / true_ratio > 0.83,
            true => (ratio / true_ratio - 1.0).abs() <= 0.15,
            // The GPU ran kernels slower concurrently with the copies than alone.
            false if before == "download_16.before" => off.abs() <= 0.12,
            false => off.abs() <= 0.10,
        };
        if !near {
            wrong.push(format!("{before} with {changes}"));
        }
        if (1.0 - true_ratio).abs() > 0.05 && (1.0 - ratio) * (1.0 - true_ratio) < 0.0 {
            wrong.push(format!("{before} with {changes}: the sign"));
        }
    }
    let medians = widths.map(|mut widths| {
        widths.sort_by(f64::total_cmp);
        widths[widths.len() / 2]
    });
    println!(
        "{held} of {} inside their ranges, of a median width of {:.1} % where the device decides, and {:.1} % where the host does",
        pairs.len(),
        100.0 * medians[0],
        100.0 * medians[1]
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(10 * held >= 9 * pairs.len());
    // Where the host decides, half of the width is at most 20 %: no trace shows whether another profile had run before.
    assert!(medians[0] <= 0.15 && medians[1] <= 0.40, "{medians:?}");
}

#[test]
fn changes_already_made_gain_nothing_more() {
    for name in [
        "infer_pageable.after",
        "blocking_download.after",
        "copy_bound.after",
    ] {
        let path = folder().join(format!("{name}.json.gz"));
        for changes in ["pinned", "prefetch=2", "no-sync", "graphs", "workers=4"] {
            let replay = report(&path, changes).replay.expect("a replay");
            let likely = replay.predictions[0].likely_ns as f64;
            let ratio = likely / replay.unprofiled_ns as f64;
            assert!((0.95..1.05).contains(&ratio), "{name} {changes}: {ratio}");
        }
    }
}

/// Returns a replay of a written trace.
fn replay_of(program: &Program, changes: &str) -> Result<Replay, &'static str> {
    let changes = changes.split(',').map(|c| c.parse().expect("a change"));
    let options = Options {
        what_if: Some(vec![changes.collect()]),
        ..Options::default()
    };
    let trace = read_json(&program.json(), &Limits::default()).expect("a trace");
    Report::of(trace, &options).replay
}

/// Returns steps of `count` kernels that the host launches in time and then waits for. The kernels of the first `slow` steps
/// take longer.
fn kernels(steps: i64, count: i64, slow: i64) -> Program {
    let mut program = Program::of(0, 0, |_, _, _| {});
    let mut start = START_US;
    for step in 0..steps {
        let kernel_us = if step < slow { 13 } else { 10 };
        let step_us = 100 + count * (kernel_us + 1);
        let name = format!("ProfilerStep#{step}");
        program.range("user_annotation", &name, (start, step_us));
        for at in 0..count {
            let begins = start + 50 + at * (kernel_us + 1);
            program.kernel(DEFAULT, start + at * 6, (begins, kernel_us));
        }
        let asked = count * 6;
        program.call("cudaStreamSynchronize", (start + asked, step_us - asked));
        start += step_us;
    }
    program
}

/// Returns steps in which the host queries `count` times whether the kernels are complete.
fn queries(steps: i64, count: i64) -> Program {
    Program::of(steps, 3 * count + 2_200, |program, start, _| {
        for at in 0..20 {
            program.kernel(DEFAULT, start + at * 10, (start + 50 + at * 101, 100));
        }
        for at in 0..count {
            program.call("cudaEventQuery", (start + 2_100 + 3 * at, 2));
        }
    })
}

#[test]
fn steps_too_long_for_a_replay_are_reported() {
    let why = replay_of(&queries(3, 134_000), "graphs").expect_err("three are too long");
    let limit = "three steps of the trace have more than 400,000 calls or GPU operations";
    assert_eq!(why, limit);
}

#[test]
fn long_steps_are_replayed_as_well_as_short_ones() {
    // Of steps with many calls only some are replayed, but each completely.
    for (program, replayed) in [
        (kernels(24, 400, 0), 24),
        (kernels(24, 8_000, 0), 8),
        (queries(4, 110_000), 3),
    ] {
        let replay = replay_of(&program, "graphs").expect("a replay");
        assert_eq!(replay.steps, replayed);
        assert!(replay.is_ok(), "{}", replay.error());
        assert!(replay.explained_share > 0.97, "{}", replay.explained_share);
        assert_eq!(replay.predictions.len(), 1);
    }
}

#[test]
fn steps_that_are_slower_at_first_do_not_spoil_the_replay() {
    // Eight of the 24 steps are replayed, all of them slow; the median step is one of the others.
    let replay = replay_of(&kernels(24, 8_000, 10), "graphs").expect("a replay");
    assert!(replay.is_ok(), "{}", replay.error());
    let measured = replay.measured_ns as f64;
    assert!((replay.replayed_ns as f64 / measured - 1.0).abs() < 0.03);
}

#[test]
fn work_without_any_call_is_not_replayed() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    for at in 0..5 {
        program.call("cudaMalloc", (at, 1));
    }
    for at in 0..24 {
        program.orphan("gemm", DEFAULT, (100 + 6 * at, 5));
    }
    let why = replay_of(&program, "graphs").expect_err("nothing shows when the host submitted it");
    assert!(why.contains("calls"), "{why}");
}

#[test]
fn a_kernel_that_takes_no_time_takes_none_in_the_replay() {
    let steps = |last_us: i64| {
        Program::of(12, 4_000, |program, start, _| {
            for at in 0..20 {
                // Two kernels that fill the device run concurrently.
                program.kernel(DEFAULT, start + at * 10, (start + 50 + at * 101, 100));
                program.kernel(20, start + 5 + at * 10, (start + 50 + at * 101, 100));
            }
            program.kernel(DEFAULT, start + 200, (start + 2_100, last_us));
            program.call("cudaDeviceSynchronize", (start + 210, 1_900));
        })
    };
    let [none, some] = [0, 1].map(|us| replay_of(&steps(us), "graphs").expect("a replay"));
    assert!(
        some.is_ok() && none.is_ok(),
        "{} {}",
        some.error(),
        none.error()
    );
}

#[test]
fn workers_load_no_faster_than_they_can() {
    // A step waits 40 ms for its batch, and takes 2 ms besides.
    let program = Program::of(20, 42_200, |program, start, _| {
        let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
        program.range("user_annotation", name, (start, 40_000));
        for at in 0..20 {
            program.kernel(
                DEFAULT,
                start + 40_000 + at * 10,
                (start + 40_050 + at * 100, 99),
            );
        }
        program.call("cudaStreamSynchronize", (start + 40_200, 1_900));
    });
    for workers in [2, 4, 8, 16] {
        let replay = replay_of(&program, &format!("workers={workers}")).expect("a replay");
        let likely_ns = replay.predictions[0].likely_ns;
        let loading_ns = 40_000_000 / workers;
        assert!(likely_ns * 100 >= loading_ns * 95, "{workers}: {likely_ns}");
        assert!(likely_ns < replay.unprofiled_ns, "{workers}: {likely_ns}");
        is_drawn_as_long_as_it_is(&replay);
    }
}

/// Checks that the picture of each prediction shows a step of about its length.
fn is_drawn_as_long_as_it_is(replay: &Replay) {
    for prediction in &replay.predictions {
        let drawn_ns = prediction.timeline.length_ns as f64;
        let off = drawn_ns / prediction.likely_ns as f64 - 1.0;
        assert!(off.abs() < 0.1, "{:?}: {off}", prediction.changes);
    }
}

#[test]
fn the_pictures_of_workers_are_as_long_as_the_predictions() {
    for workers in ["workers=2", "workers=3", "workers=4", "workers=8"] {
        let starved = report(&folder().join("loader_starved.before.json.gz"), workers);
        is_drawn_as_long_as_it_is(&starved.replay.expect("a replay"));
    }
}

#[test]
fn more_workers_load_proportionally_faster_and_the_rest_of_a_step_stays() {
    // A step waits 40 ms for a batch of its workers, and takes 2 ms besides.
    let waiting = |waits_us: i64| {
        Program::of(20, waits_us + 2_200, |program, start, _| {
            let name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
            program.range("user_annotation", name, (start, waits_us));
            for at in 0..20 {
                let start = start + waits_us;
                program.kernel(DEFAULT, start + at * 10, (start + 50 + at * 100, 99));
            }
            program.call("cudaStreamSynchronize", (start + waits_us + 200, 1_900));
        })
    };
    let starved = waiting(40_000);
    for (times, least_ns) in [
        (2, 21_100_000),
        (4, 10_550_000),
        (8, 5_275_000),
        (64, 2_000_000),
    ] {
        let replay = replay_of(&starved, &format!("more-workers={times}")).expect("a replay");
        let likely_ns = replay.predictions[0].likely_ns;
        let off = likely_ns as f64 / least_ns as f64;
        assert!((0.97..1.15).contains(&off), "{times}: {likely_ns}");
        is_drawn_as_long_as_it_is(&replay);
    }
    // Workers that keep up are enough.
    let fed = replay_of(&waiting(100), "more-workers=8").expect("a replay");
    assert!(!fed.predictions[0].is_effective);
}

#[test]
fn more_workers_are_advised_where_the_present_ones_do_not_keep_up() {
    let alone = recorded("loader_starved.before").to_string();
    let [alone, beside] = ["SingleProcess", "MultiProcessing"].map(|kind| {
        let text = alone.replace("SingleProcess", kind);
        let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
        let report = Report::of(trace, &Options::default());
        let starved = report.findings.into_iter();
        let mut starved = starved.filter(|finding| finding.code.as_str() == "HOST_STARVED");
        starved.next().expect("it waits for data")
    });
    assert!(alone.text.contains("more workers of the data loader, or"));
    assert_eq!(alone.changes, [Change::Workers(4)]);
    let text = &beside.text;
    assert!(
        text.contains("the workers of the data loader do not keep up"),
        "{text}"
    );
    // The time without waits is between a sixteenth and an eighth of a step: eight times as many would not keep up.
    assert_eq!(beside.changes, [Change::MoreWorkers(16)]);
    assert!(beside.saving_ns.low > 0);
    assert!(beside.saving_ns.likely <= alone.saving_ns.high);
}

#[test]
fn more_workers_are_not_predicted_for_a_program_that_has_none() {
    let asked = report(
        &folder().join("loader_starved.before.json.gz"),
        "more-workers=2",
    );
    assert_eq!(asked.replay.expect("a replay").predictions, []);
    let mut warnings = asked.warnings.iter();
    let warning = warnings.find(|warning| warning.code == "WORKERS");
    let text = &warning.expect("a requested change is not skipped").text;
    assert!(
        text.starts_with("more-workers=2 cannot be predicted: "),
        "{text}"
    );
    assert!(text.ends_with("ask for workers=N"), "{text}");
}

#[test]
fn a_number_of_workers_is_not_predicted_for_a_program_that_has_some() {
    // The batches of this program come from workers: the trace shows how long the program waits for them.
    let path = folder().join("loader_starved.after.json.gz");
    let asked = report(&path, "workers=8");
    assert_eq!(asked.replay.expect("a replay").predictions, []);
    let mut warnings = asked.warnings.iter();
    let warning = warnings.find(|warning| warning.code == "WORKERS");
    let text = &warning.expect("a requested change is not skipped").text;
    assert!(
        text.starts_with("workers=8 cannot be predicted: "),
        "{text}"
    );
    assert!(text.ends_with("ask for more-workers=N, N times as many"));
    for other in ["pinned", "more-workers=2"] {
        let other = report(&path, other);
        assert_eq!(other.replay.expect("a replay").predictions.len(), 1);
    }
    let trace = read(&path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    let usual = Report::of(trace, &Options::default());
    assert!(
        usual
            .warnings
            .iter()
            .all(|warning| warning.code != "WORKERS")
    );
    let predictions = usual.replay.expect("a replay").predictions;
    assert!(predictions.len() > 5);
    let workers = |change: &Change| matches!(change, Change::Workers(_));
    assert!(!predictions.iter().any(|p| p.changes.iter().any(workers)));
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
        "non-blocking-streams",
    ] {
        let change: Change = text.parse().expect("a change");
        assert_eq!(change.to_string(), text);
    }
    for (text, says) in [
        ("", "there is no change"),
        ("pin", "there is no change"),
        ("prefetch=0", "from 1 to 1024"),
        ("prefetch=x", "from 1 to 1024"),
        ("workers=-1", "from 1 to 1024"),
        ("graphs=2", "takes no number"),
        ("workers=9999999", "from 1 to 1024"),
    ] {
        let error = text.parse::<Change>().expect_err(text);
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
}

/// Returns a recorded trace as values, to be altered.
fn recorded(name: &str) -> Value {
    let file = std::fs::File::open(folder().join(format!("{name}.json.gz"))).expect("the trace");
    let mut text = String::new();
    let unpacked = flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text);
    unpacked.expect("it is packed");
    serde_json::from_str(&text).expect("JSON")
}

const ODD_NUMBERS: [&str; 8] = [
    "0",
    "-1",
    "1",
    "1e15",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775.807",
];
const NUMBERS: [&str; 9] = [
    "ts",
    "dur",
    "correlation",
    "stream",
    "device",
    "tid",
    "pid",
    "bytes",
    "registers per thread",
];

#[test]
fn a_report_about_an_altered_trace_is_sound_or_refused() {
    let all = "pinned,prefetch=3,no-sync,graphs,workers=2,second-stream,non-blocking-streams";
    let (mut reports, mut predicted) = (0, 0);
    for name in [
        "launch_bound.before",
        "loader_starved.before",
        "branches_mid.after",
    ] {
        let whole = recorded(name);
        for seed in 0..80 {
            println!("{name}, seed {seed}");
            let mut random = Random::new(seed);
            let mut trace = whole.clone();
            let rows = trace["traceEvents"].as_array_mut().expect("rows");
            // Keeps a leading part of the rows; then, of each kind, all rows, only the first few, or a random two thirds.
            rows.truncate(rows.len() / (1 + random.below(3)));
            for kind in ["kernel", "cuda_runtime", "user_annotation", "cpu_op"] {
                let (part, first, mut count) = (random.below(6), random.below(20), 0);
                rows.retain(|row| {
                    let is_kind = row["cat"] == kind;
                    count += usize::from(is_kind);
                    let stays = match part {
                        0 => count <= first,
                        1 => random.below(3) != 0,
                        _ => true,
                    };
                    stays || !is_kind
                });
            }
            for _ in 0..[0, 1, 10, 100][random.below(4)] {
                let at = random.below(rows.len());
                let Some(row) = rows.get_mut(at) else {
                    continue;
                };
                let odd = ODD_NUMBERS[random.below(ODD_NUMBERS.len())];
                let odd: Value = serde_json::from_str(odd).expect("a number");
                let key = NUMBERS[random.below(NUMBERS.len())];
                match row["args"].get_mut(key) {
                    Some(of_args) => *of_args = odd,
                    None => row[key] = odd,
                }
            }
            if random.below(3) == 0 {
                let kernels = rows.iter_mut().filter(|row| row["cat"] == "kernel");
                kernels.for_each(|kernel| kernel["dur"] = 0.into());
            }
            let text = trace.to_string();
            if let Ok(trace) = read_json(text.as_bytes(), &Limits::default()) {
                let changes = all.split(',').map(|c| c.parse().expect("a change"));
                let options = Options {
                    what_if: Some(vec![changes.collect()]),
                    ..Options::default()
                };
                let report = Report::of(trace, &options);
                for (device, idle) in &report.devices {
                    let causes: u64 = idle.by_cause.values().sum();
                    assert_eq!(causes, device.idle_ns(), "each idle nanosecond once");
                }
                reports += 1;
                let predictions = report.replay.map(|replay| replay.predictions.len());
                predicted += predictions.unwrap_or(0);
            }
        }
    }
    println!("{reports} reports, {predicted} with predictions");
    // Otherwise the alterations leave nothing to analyze.
    assert!(reports > 100 && predicted > 20);
}
