//! Checks that nothing impossible is promised, and nothing unknown is claimed: each test is the smallest trace that shows it.

use crate::fixtures::program::{DEFAULT, Program, START_US};
use sidestream_diagnose::{
    Cause, Change, Code, Limits, Options, Prediction, Report, read_json, text,
};

fn of_json(json: &[u8]) -> Report {
    let trace = read_json(json, &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

fn report(program: &Program) -> Report {
    of_json(&program.json())
}

/// Returns the report on the program for another device.
fn on(program: &Program, device: &str) -> Report {
    let json = String::from_utf8(program.json()).expect("text");
    of_json(json.replace("NVIDIA H200", device).as_bytes())
}

fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|f| f.code).collect()
}

#[track_caller]
fn prediction(report: &Report, change: Change) -> &Prediction {
    let replay = report.replay.as_ref().expect("a replay");
    assert!(replay.is_ok(), "{}", replay.error());
    replay.prediction(&[change]).expect("a prediction")
}

#[track_caller]
fn idle_ns(report: &Report, cause: Cause) -> u64 {
    let by_cause = &report.devices[0].1.by_cause;
    by_cause.get(&cause).copied().unwrap_or(0)
}

/// Returns steps of an upload, a kernel, and a download after it, in streams that alternate.
fn both_ways(streams: [u32; 2]) -> Program {
    Program::of(12, 2_120, |program, start, step| {
        let stream = streams[step as usize % 2];
        let call = |at: i64| (start + at * 6, 5);
        program.copy(
            "Pinned -> Device",
            40_000_000,
            stream,
            call(0),
            (start + 8, 1_000),
        );
        program.kernel(stream, start + 6, (start + 1_009, 100));
        program.copy(
            "Device -> Pinned",
            39_000_000,
            stream,
            call(2),
            (start + 1_110, 1_000),
        );
        program.call("cudaDeviceSynchronize", (start + 20, 2_095));
    })
}

#[test]
fn one_copy_engine_copies_in_one_direction_at_a_time() {
    let ratio = |report: &Report| {
        let prediction = prediction(report, Change::Prefetch(2));
        let replay = report.replay.as_ref().expect("a replay");
        let of = |ns: u64| ns as f64 / replay.unprofiled_ns as f64;
        (of(prediction.likely_ns), of(prediction.high_ns))
    };
    // Work in one stream does not show how many copy engines the device has. Only some device models are known to have two.
    let (known, _) = ratio(&on(&both_ways([7, 7]), "NVIDIA H200"));
    let (unknown, most) = ratio(&on(&both_ways([7, 7]), "NVIDIA GeForce RTX 4060 Ti"));
    assert!(
        known < 0.7 && (unknown - known).abs() < 0.01,
        "{known} {unknown}"
    );
    assert!(most > 0.93, "{most}");
    // Copies that take turns in separate streams show that the device has one engine.
    let (shown, _) = ratio(&on(&both_ways([13, 14]), "NVIDIA GeForce RTX 4060 Ti"));
    assert!(shown > 0.93, "{shown}");
}

/// Calls that a program makes before the kernel.
type Calls = fn(&mut Program);

/// Returns a kernel that starts long after it was submitted, after some calls.
fn late(before: impl Fn(&mut Program)) -> Report {
    let mut program = Program::of(0, 0, |_, _, _| {});
    for at in 0..12 {
        program.kernel(DEFAULT, at * 5, (6 + at * 5, 4));
    }
    before(&mut program);
    program.kernel(9, 200, (30_000, 10));
    report(&program)
}

#[test]
fn work_that_starts_late_without_any_wait_before_it_has_no_cause() {
    let waits: [(&str, Calls); 3] = [
        ("none", |_| {}),
        // Other work of the stream was submitted after the wait and has run, so the wait was complete.
        ("complete", |program| {
            program.call("cudaStreamWaitEvent", (80, 2));
            program.kernel(9, 90, (100, 10));
        }),
        ("pending", |program| {
            program.kernel(9, 90, (100, 10));
            program.call("cudaStreamWaitEvent", (120, 2));
        }),
    ];
    for (name, before) in waits {
        let report = late(before);
        let waited = idle_ns(&report, Cause::StreamWait) > 25_000_000;
        let without = idle_ns(&report, Cause::Unattributed) > 25_000_000;
        assert_eq!(
            (waited, without),
            (name == "pending", name != "pending"),
            "{name}"
        );
        let page = text("t", &report, 80);
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            page.contains("the trace does not show why"),
            without,
            "{page}"
        );
        assert_eq!(codes(&report).contains(&Code::StreamWait), waited, "{name}");
    }
}

#[test]
fn a_sample_of_a_trace_says_nothing_about_idle_time() {
    let rows = |each: i64| {
        let row = |at: i64| {
            let (start, number) = (at * 2_000, 1 + at * each);
            format!(
                r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{start},"dur":5,"args":{{"correlation":{number}}}}},
                {{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{},"dur":10,"args":{{"device":0,"stream":7,"correlation":{number}}}}}"#,
                start + 10
            )
        };
        let rows: Vec<String> = (0..200).map(row).collect();
        format!(
            r#"{{"schemaVersion":1,"traceEvents":[{}]}}"#,
            rows.join(",")
        )
    };
    let whole = of_json(rows(5).as_bytes());
    assert!(
        codes(&whole).contains(&Code::HostWork),
        "{:#?}",
        whole.findings
    );
    let sample = of_json(rows(200).as_bytes());
    assert!(sample.findings.is_empty(), "{:#?}", sample.findings);
    assert!(sample.replay.is_err());
    assert_eq!(idle_ns(&sample, Cause::HostWork), 0);
    assert!(sample.warnings.iter().any(|w| w.code == "SAMPLED"));
}

/// Returns launches of a graph, each with this many kernels in the trace.
fn graphs(kernels: &[i64]) -> Report {
    let mut rows = Vec::new();
    for (at, count) in kernels.iter().enumerate() {
        let (start, number) = (at as i64 * 1_000, at + 1);
        rows.push(format!(
            r#"{{"ph":"X","cat":"user_annotation","name":"decode","pid":1,"tid":1,"ts":{},"dur":900,"args":{{}}}}"#,
            start - 10
        ));
        rows.push(format!(
            r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":1,"tid":1,"ts":{start},"dur":10,"args":{{"correlation":{number}}}}}"#
        ));
        rows.extend((0..*count).map(|kernel| {
            let start = start + 20 + kernel * 11;
            format!(
                r#"{{"ph":"X","cat":"kernel","name":"k{kernel}","pid":0,"tid":7,"ts":{start},"dur":10,"args":{{"device":0,"stream":7,"correlation":{number}}}}}"#
            )
        }));
    }
    of_json(
        format!(
            r#"{{"schemaVersion":1,"traceEvents":[{}]}}"#,
            rows.join(",")
        )
        .as_bytes(),
    )
}

#[test]
fn graphs_whose_kernels_the_trace_lacks_are_named() {
    let said = |report: &Report| {
        let warning = report.warnings.iter().find(|w| w.code == "GRAPHS");
        warning.map(|w| w.text.clone())
    };
    assert_eq!(said(&graphs(&[20; 8])), None);
    // The graph of the last launch may still have been running when the trace ended.
    assert_eq!(said(&graphs(&[20, 20, 20, 20, 20, 20, 20, 3])), None);
    let some = said(&graphs(&[20, 20, 20, 7, 20, 20, 20, 20])).expect("a warning");
    assert!(
        some.starts_with("1 of 7 launches of the graph of 20 operations that begins with k0"),
        "{some}"
    );
    assert!(some.contains("in decode"), "{some}");
    let none = said(&graphs(&[20, 20, 20, 0, 0, 20, 20, 20])).expect("a warning");
    assert!(
        none.starts_with("2 of 7 graph launches left no work in the trace"),
        "{none}"
    );
    assert!(none.contains("in decode"), "{none}");
}

/// Returns many steps of many kernels; in some of them the host first does its own work.
fn phases(steps: i64, works: impl Fn(i64) -> bool) -> Report {
    let mut program = Program::of(0, 0, |_, _, _| {});
    let mut start = START_US;
    for step in 0..steps {
        let own = if works(step) { 3_000 } else { 0 };
        let length = own + 600 * 7 + 40;
        program.range(
            "user_annotation",
            &format!("ProfilerStep#{step}"),
            (start, length),
        );
        if own > 0 && step >= 60 {
            program.range(
                "user_annotation",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                (start, own),
            );
        }
        for at in 0..600 {
            let launched = start + own + at * 7;
            program.kernel(DEFAULT, launched, (launched + 6, 4));
        }
        program.call("cudaDeviceSynchronize", (start + own + 600 * 7, 35));
        start += length;
    }
    report(&program)
}

#[test]
fn replayed_steps_are_representative() {
    // The host does its own work in the first half: the first steps alone would have it in every step.
    let halves = phases(72, |step| step < 36);
    let replay = halves.replay.as_ref().expect("a replay");
    assert!(
        replay.steps < 72 && replay.is_ok(),
        "{} {}",
        replay.steps,
        replay.error()
    );
    let gain = replay.unprofiled_ns - prediction(&halves, Change::HostWork(4)).likely_ns;
    assert!((1_200_000..=1_600_000).contains(&gain), "{gain}");
    // At first the host does its own work, at the end it waits for data: no consecutive steps have the average share of both.
    let ends = phases(80, |step| !(10..70).contains(&step));
    let why = ends.replay.map(|replay| replay.steps);
    let why = why.expect_err("no steps stand for the trace");
    assert!(why.contains("represents the whole"), "{why}");
}

#[test]
fn steps_that_are_a_tiny_part_of_a_trace_predict_nothing() {
    let of = |length: i64| {
        let mut program = Program::of(8, 2_000, |program, start, _| {
            for at in 0..10 {
                program.kernel(DEFAULT, start + at * 100, (start + 20 + at * 100, 60));
            }
        });
        program.kernel(DEFAULT, START_US + 20_000, (START_US + 20_010, length));
        report(&program)
    };
    assert!(of(1_000).replay.is_ok());
    let why = of(1_000_000)
        .replay
        .expect_err("the steps are a small part");
    assert!(why.contains("5 %"), "{why}");
}

#[test]
fn host_work_without_calls_after_a_copy_is_its_own_work() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    let mut start = 0;
    for (part, count) in [5, 2, 7, 3].into_iter().enumerate() {
        for at in 0..count {
            let name = format!("k{part}.{at}");
            let span = (start + 20 + at * 1_000, 990);
            program.kernel_of(&name, 1_056, DEFAULT, start + at * 10, span);
        }
        let over = start + 20 + count * 1_000;
        program.copy(
            "Device -> Pageable",
            400,
            DEFAULT,
            (start + 130, over - start - 100),
            (over, 20),
        );
        // The host works for 2.3 ms without a call.
        start = over + 2_330;
    }
    program.kernel_of("last", 1_056, DEFAULT, start, (start + 10, 100));
    let report = report(&program);
    let by_cause = &report.devices[0].1.by_cause;
    let own_ns = idle_ns(&report, Cause::HostWork);
    assert!(own_ns > 3 * 2_200_000, "{:?} {by_cause:?}", report.steps.by);
    assert!(
        idle_ns(&report, Cause::BlockingCopy) < 300_000,
        "{by_cause:?}"
    );
}

#[test]
fn downloaded_data_is_not_uploaded_ahead() {
    let of = |up: u64| {
        let program = Program::of(16, 3_120, |program, start, _| {
            program.copy(
                "Pinned -> Device",
                up,
                DEFAULT,
                (start, 5),
                (start + 8, 1_000),
            );
            program.kernel(DEFAULT, start + 6, (start + 1_009, 1_000));
            program.copy(
                "Device -> Pinned",
                50_000_000,
                DEFAULT,
                (start + 12, 5),
                (start + 2_010, 1_000),
            );
            program.call("cudaDeviceSynchronize", (start + 20, 3_000));
        });
        let report = report(&program);
        let replay = report.replay.as_ref().expect("a replay");
        prediction(&report, Change::Prefetch(2)).likely_ns as f64 / replay.unprofiled_ns as f64
    };
    // Other data may be uploaded while the previous step runs, but not data that this step downloads.
    assert!(of(50_000_008) < 0.8);
    assert!(of(50_000_000) > 0.97);
}

#[test]
fn copies_hide_behind_no_more_than_there_is() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    for at in 0..12 {
        let start = at * 1_100;
        program.copy(
            "Pinned -> Device",
            50_000_000 + at as u64,
            DEFAULT,
            (start, 5),
            (start + 8, 1_000),
        );
        program.kernel_of(
            &format!("k{at}"),
            1_056,
            DEFAULT,
            start + 6,
            (start + 1_009, 10),
        );
    }
    let report = report(&program);
    let device = &report.devices[0].0;
    let behind_ns = device.kernel_ns() + device.idle_ns();
    for finding in &report.findings {
        assert!(finding.saving_ns.high <= behind_ns, "{finding:#?}");
    }
    assert!(
        codes(&report).contains(&Code::CopyOnComputeStream),
        "{:#?}",
        report.findings
    );
}
