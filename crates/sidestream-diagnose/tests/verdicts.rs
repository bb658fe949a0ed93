//! Tests verdicts that were once wrong: each test is the smallest trace that shows it.

use std::path::Path;

use crate::fixtures::program::{DEFAULT, Program, START_US};
use sidestream_diagnose::{
    Cause, Change, Code, Finding, Limits, Options, Report, read, read_json, text,
};

pub const STEPS: i64 = 24;
pub const LOADS: &str = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";

pub fn report(program: &Program) -> Report {
    of_json(&program.json())
}

fn of_json(json: &[u8]) -> Report {
    let trace = read_json(json, &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

fn recorded(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    let trace = read(&path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    Report::of(trace, &Options::default())
}

pub fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|f| f.code).collect()
}

#[track_caller]
pub fn finding(report: &Report, code: Code) -> &Finding {
    let found = report.findings.iter().find(|f| f.code == code);
    found.unwrap_or_else(|| panic!("{code:?} is not in {:#?}", report.findings))
}

/// Returns a time as a part of a step, as findings state it.
fn part(report: &Report, ns: u64) -> f64 {
    ns as f64 / report.judged_step_ns() as f64
}

/// Returns steps of different lengths, each of which begins when the previous one ends.
fn uneven(lengths: impl Fn(i64) -> i64, one: impl Fn(&mut Program, i64, i64)) -> Program {
    let mut program = Program::of(0, 0, |_, _, _| {});
    let mut start = START_US;
    for step in 0..STEPS {
        let length = lengths(step);
        let name = format!("ProfilerStep#{step}");
        program.range("user_annotation", &name, (start, length));
        one(&mut program, start, step);
        start += length;
    }
    program
}

#[test]
fn a_loader_that_stalls_in_some_steps_is_found() {
    let load = |step: i64| if step % 3 == 2 { 40_000 } else { 100 };
    let program = uneven(
        |step| load(step) + 10_200,
        |program, start, step| {
            program.range("user_annotation", LOADS, (start, load(step)));
            let start = start + load(step) + 10;
            for at in 0..10 {
                program.kernel(DEFAULT, start + at * 20, (start + 8 + at * 1_000, 998));
            }
            program.call("cudaDeviceSynchronize", (start + 210, 9_900));
        },
    );
    let report = report(&program);
    let found = &report.findings[0];
    assert_eq!(found.code, Code::HostStarved, "{:#?}", report.findings);
    assert!(part(&report, found.saving_ns.likely) > 0.4, "{found:?}");
    assert!(!codes(&report).contains(&Code::NothingToGain));
    // The device waits for the loader, not for the host's own work.
    assert!(!codes(&report).contains(&Code::HostWork));
}

#[test]
fn the_layers_of_one_pass_are_not_steps() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    program.kernel(DEFAULT, 0, (10, 5));
    program.call("cudaStreamSynchronize", (30, 1_000_000));
    for at in 0..36 * 4 {
        let name = ["qkv", "attention", "projection", "perceptron"][at as usize % 4];
        let launched = 1_000_040 + at * 6;
        program.kernel_of(name, 1_056, DEFAULT, launched, (1_000_300 + at * 61, 60));
    }
    let report = report(&program);
    assert_eq!(report.steps.mean_ns(), None);
    assert!(!codes(&report).contains(&Code::NothingToGain));
    assert!(report.findings.iter().all(|f| f.saving_ns.likely == 0));
    let page = text("t", &report, 80);
    assert!(
        page.contains("only upper bounds of gains are known"),
        "{page}"
    );
}

#[test]
fn work_that_repeats_in_one_marked_step_is_a_part_of_it() {
    for (marked, are_steps) in [(false, true), (true, false)] {
        let mut program = Program::of(0, 0, |_, _, _| {});
        if marked {
            program.range("user_annotation", "ProfilerStep#7", (0, 40_000));
        }
        for at in 0..36 * 4 {
            let name = ["qkv", "attention", "projection", "perceptron"][at as usize % 4];
            program.kernel_of(name, 1_056, DEFAULT, 40 + at * 6, (300 + at * 61, 60));
        }
        assert_eq!(
            report(&program).steps.mean_ns().is_some(),
            are_steps,
            "{marked}"
        );
    }
}

#[test]
fn waits_after_each_layer_gain_what_the_replay_predicts() {
    let report = recorded("sync_each_layer.before");
    let found = &report.findings[0];
    assert_eq!(found.code, Code::SyncInStep, "{:#?}", codes(&report));
    // The measured gain was 42 %.
    let part = part(&report, found.saving_ns.likely);
    assert!((0.36..0.48).contains(&part), "{part}");
    assert!(!codes(&report).contains(&Code::NothingToGain));
    assert_eq!(report.judged[0].code, Code::SyncInStep);
}

/// Workers decide when a batch is ready: a program that asks for it earlier waits longer.
#[test]
fn nothing_but_the_loader_gains_where_its_workers_do_not_keep_up() {
    let of = |loads: &str| {
        let mut program = Program::of(STEPS, 30_000, |_, _, _| {});
        for step in 0..STEPS {
            let start = START_US + step * 30_000;
            program.range("user_annotation", loads, (start, 15_000));
            let copy = (start + 15_010, 6_000);
            program.copy("Pageable -> Device", 30_000_000, DEFAULT, copy, copy);
            program.kernel(DEFAULT, start + 21_020, (start + 21_030, 8_900));
            program.call("cudaDeviceSynchronize", (start + 21_040, 8_895));
        }
        report(&program)
    };
    let gain = |report: &Report| {
        let replay = report.replay.as_ref().expect("a replay");
        let pinned = [Change::Pinned];
        let one = replay.predictions.iter().find(|p| p.changes == pinned);
        let step_ns = one.expect("a prediction").likely_ns;
        1.0 - step_ns as f64 / replay.unprofiled_ns as f64
    };
    let (own, workers) = (
        of(LOADS),
        of(&LOADS.replace("SingleProcess", "MultiProcessing")),
    );
    assert!(gain(&own) > 0.05, "{}", gain(&own));
    assert!(gain(&workers) < 0.01, "{}", gain(&workers));
    let first = &workers.findings[0];
    assert_eq!(first.code, Code::HostStarved);
    // Twice as many workers give a batch in 15 ms, which is the time of the rest of a step.
    assert_eq!(first.changes, [Change::MoreWorkers(2)]);
    let part = part(&workers, first.saving_ns.likely);
    assert!((0.4..0.52).contains(&part), "{part}");
    assert!(!codes(&workers).contains(&Code::NothingToGain));
    let page = text("t", &workers, 200);
    assert!(
        page.contains("if there are CPU cores for the workers"),
        "{page}"
    );
    assert!(page.contains("the others gain less than 1 %"), "{page}");
}

/// A step of an engine that decodes: its first kernel waits for an event of work before the trace, and the host waits for it in
/// a copy, the only one of its name and by far the longest operator.
#[test]
fn a_copy_that_waits_for_earlier_work_is_a_wait_and_not_one_time_work() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    let start = START_US;
    program.kernel(DEFAULT, start, (start + 10, 5));
    program.call("cudaStreamWaitEvent", (start + 20, 5));
    program.kernel(DEFAULT, start + 30, (start + 463_000, 10));
    program.range("cpu_op", "aten::copy_", (start + 60, 462_990));
    let copy = (start + 463_012, 4);
    program.copy(
        "DtoH (Device -> Pageable)",
        256,
        DEFAULT,
        (start + 70, 462_970),
        copy,
    );
    program.range("cpu_op", "aten::copy_", (start + 463_100, 20));
    for at in 0..40 {
        let launched = start + 463_200 + at * 20;
        program.kernel(DEFAULT, launched, (launched + 8, 12));
    }
    let found = &report(&program).findings[0];
    assert_eq!(found.code, Code::StreamWait, "{found:?}");
    assert!(found.text.contains("cudaStreamWaitEvent"), "{found:?}");
}

#[test]
fn one_time_work_is_never_promised() {
    // The first launch loads the code.
    let mut program = Program::of(0, 0, |_, _, _| {});
    program.kernel(DEFAULT, 0, (10, 5));
    program.kernel_within((20, 4_000_000), (4_000_025, 1_000));
    for at in 0..50 {
        let launched = 4_000_040 + at * 10;
        program.kernel(DEFAULT, launched, (4_001_030 + at * 400, 395));
    }
    let found = report(&program);
    assert_eq!(
        codes(&found)[0],
        Code::Initialisation,
        "{:#?}",
        found.findings
    );
    assert!(found.findings.iter().all(|f| f.saving_ns.high < 1_000_000));
    // In the first of the marked steps memory is allocated, and an operator sets itself up.
    let slow_start = uneven(
        |step| if step < 2 { 60_000 } else { 1_000 },
        |program, start, step| {
            if step < 2 {
                program.call("cudaMalloc", (start, 20_000));
                program.range(
                    "cpu_op",
                    "aten::cudnn_convolution",
                    (start + 20_000, 39_000),
                );
                let launched = start + 59_000;
                program.kernel(DEFAULT, launched, (launched + 10, 950));
                return;
            }
            program.range("cpu_op", "aten::cudnn_convolution", (start, 30));
            program.kernel(DEFAULT, start + 5, (start + 10, 950));
        },
    );
    let found = report(&slow_start);
    let set_up = finding(&found, Code::Initialisation);
    assert_eq!(set_up.saving_ns.high, 0);
    assert_eq!(
        found
            .judged
            .iter()
            .map(|one| one.gain_ns.likely)
            .filter(|ns| *ns > 500_000)
            .count(),
        0
    );
    assert!(found.replay.expect("a replay").unprofiled_ns < 1_100_000);
}

#[test]
fn work_that_waits_for_an_event_is_not_bound_by_its_launch() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    for at in 0..12 {
        program.kernel(DEFAULT, at * 5, (6 + at * 5, 4));
    }
    program.call("cudaStreamWaitEvent", (80, 2));
    program.kernel(9, 90, (1_000_000, 10));
    let report = report(&program);
    let found = &report.findings[0];
    assert_eq!(found.code, Code::StreamWait, "{:#?}", report.findings);
    assert!(found.text.contains("cudaStreamWaitEvent"), "{}", found.text);
    assert!(
        found
            .text
            .contains("a trace cannot say that a wait is not needed")
    );
    let idle = &report.devices[0].1.by_cause;
    assert!(
        idle.get(&Cause::LaunchBound).is_none_or(|ns| *ns < 150_000),
        "{idle:?}"
    );
}

#[test]
fn an_operator_that_calls_nothing_is_the_hosts_own_work() {
    let make = |us: i64| {
        Program::of(12, us + 2_000, move |program, start, _| {
            program.range("user_annotation", "make_batch", (start + 2, us + 4));
            program.range("cpu_op", "aten::normal_", (start + 5, us));
            let launched = start + us + 10;
            program.kernel(DEFAULT, launched, (launched + 10, 1_500));
            program.call("cudaDeviceSynchronize", (launched + 20, 1_600));
        })
    };
    let slow = report(&make(10_000));
    let found = &slow.findings[0];
    assert_eq!(found.code, Code::HostWork, "{:#?}", slow.findings);
    assert!(found.text.contains("aten::normal_"), "{}", found.text);
    // Four workers would take 2.5 ms a step, longer than the rest of the step.
    assert_eq!(found.changes, [Change::HostWork(8)]);
    assert!(part(&slow, found.saving_ns.likely) > 0.6, "{found:?}");
    assert!(!codes(&report(&make(100))).contains(&Code::HostWork));
}

#[test]
fn the_largest_cause_comes_first_and_has_its_name() {
    let report = recorded("starved_hard.before");
    let found = &report.findings[0];
    assert_eq!(found.code, Code::HostWork);
    assert!(found.text.contains("load_batch"), "{}", found.text);
    assert_eq!(found.evidence[0].what, "load_batch");
    assert!(part(&report, found.saving_ns.likely) > 0.6);
}

#[test]
fn no_prediction_leads_below_the_time_in_which_kernels_ran() {
    // Two kinds of steps, so that a median would jump.
    let program = uneven(
        |step| if step % 2 == 0 { 1_200 } else { 3_400 },
        |program, start, step| {
            let count = if step % 2 == 0 { 1 } else { 3 };
            for at in 0..count {
                program.kernel(DEFAULT, start + 10 + at * 6, (start + 30 + at * 1_000, 999));
            }
            program.call("cudaDeviceSynchronize", (start + 60, 1_000 * count));
        },
    );
    let report = report(&program);
    let replay = report.replay.expect("a replay");
    // 23 steps: 12 of 2,997 µs and 11 of 999 µs.
    let busy_ns = (12 * 2_997_000 + 11 * 999_000) / 23;
    for prediction in &replay.predictions {
        let likely_ns = prediction.likely_ns;
        assert!(
            likely_ns + 2 >= busy_ns,
            "{:?}: {likely_ns}",
            prediction.changes
        );
    }
}

#[test]
fn collectives_do_not_move_to_a_second_stream() {
    let program = Program::of(STEPS, 20, |program, start, step| {
        let device = START_US + 50 + step * 1_000;
        program.kernel_of("narrow", 16, OTHER, start + 1, (device, 300));
        for at in 0..2 {
            let span = (device + 302 + at * 340, 338);
            program.kernel_of(
                "ncclDevKernel_AllReduce_Sum_f32",
                24,
                OTHER,
                start + 6 + at * 4,
                span,
            );
        }
    });
    let replay = report(&program).replay.expect("a replay");
    let second = replay
        .prediction(&[Change::SecondStream])
        .expect("it is tried");
    assert!(
        second.likely_ns * 100 > replay.unprofiled_ns * 95,
        "{second:?}"
    );
}

/// A stream that is not the default one.
const OTHER: u32 = 20;

#[test]
fn ranges_of_a_framework_are_not_steps() {
    for (name, are_steps) in [
        ("nccl:all_reduce", false),
        ("## Call CompiledFxGraph abc ##", false),
        ("aten::mm", false),
        ("train_step", true),
    ] {
        let mut program = Program::of(0, 0, |_, _, _| {});
        for at in 0..12 {
            let start = START_US + at * at * 100;
            program.range("user_annotation", name, (start, 90));
            let kernel = format!("kernel{at}");
            program.kernel_of(&kernel, 1_056, DEFAULT, start + 5, (start + 12, 60));
        }
        let report = report(&program);
        assert_eq!(report.steps.mean_ns().is_some(), are_steps, "{name}");
    }
}

#[test]
fn a_wait_in_the_wrong_place_is_found_and_named() {
    // The upload of a step waits for the kernel of the previous step, though it has its own buffer.
    let program = |waits: bool| {
        Program::of(STEPS, 40, move |program, start, step| {
            let period = if waits { 610 } else { 402 };
            let device = START_US + 60 + step * period;
            if waits {
                program.call("cudaEventRecord", (start, 1));
                program.call("cudaStreamWaitEvent", (start + 2, 1));
            }
            let upload = (device, 200);
            program.copy(
                "Pinned -> Device",
                10_000_000,
                OTHER,
                (start + 4, 4),
                upload,
            );
            program.call("cudaEventRecord", (start + 9, 1));
            program.call("cudaStreamWaitEvent", (start + 11, 1));
            program.kernel(DEFAULT, start + 14, (device + 204, 398));
        })
    };
    let serial = report(&program(true));
    let found = &serial.findings[0];
    assert_eq!(found.code, Code::StreamWait, "{:#?}", serial.findings);
    assert!(
        found
            .text
            .contains("stream 20 waits for events of stream 7")
            || !found.changes.is_empty()
    );
    let gained = part(&serial, found.saving_ns.likely);
    assert!((0.28..0.36).contains(&gained), "{gained}");
    let drop = Change::DropWait(20, 7);
    let replay = serial.replay.as_ref().expect("a replay");
    assert!(
        replay
            .prediction(std::slice::from_ref(&drop))
            .is_some_and(|p| p.is_effective)
    );
    assert_eq!(drop.to_string(), "drop-wait=20:7");
    assert!(!codes(&serial).contains(&Code::NothingToGain));
    let apart = report(&program(false));
    assert!(
        !codes(&apart).contains(&Code::StreamWait),
        "{:#?}",
        apart.findings
    );
}

#[test]
fn streams_of_pytorch_do_not_wait_for_the_default_stream() {
    let turns = |inside: bool| {
        Program::of(12, 40, move |program, start, step| {
            let device = START_US + 50 + step * 304;
            if inside {
                program.range("cpu_op", "aten::mul", (start, 38));
            }
            program.kernel_of("small", 16, DEFAULT, start + 1, (device, 100));
            program.kernel_of("small", 16, OTHER, start + 8, (device + 102, 200));
        })
    };
    let code = Code::DefaultStreamSerialization;
    assert!(codes(&report(&turns(false))).contains(&code));
    assert!(!codes(&report(&turns(true))).contains(&code));
    // A recorded program gains what the replay predicts: the measured gain was 75 %.
    let long = recorded("default_stream_long.before");
    assert_eq!(long.findings[0].code, code);
    assert!(part(&long, long.findings[0].saving_ns.likely) > 0.7);
}

#[test]
fn downloads_may_be_read_a_step_later() {
    let program = Program::of(STEPS, 2_200, |program, start, _| {
        program.kernel(DEFAULT, start + 50, (start + 60, 1_000));
        let download = (start + 1_061, 4);
        program.copy(
            "Device -> Pinned",
            4_000,
            DEFAULT,
            (start + 58, 5),
            download,
        );
        program.call("cudaStreamSynchronize", (start + 70, 1_000));
        // The host continues its work with the result.
        program.range("user_annotation", "log", (start + 1_080, 1_100));
    });
    let report = report(&program);
    let replay = report.replay.as_ref().expect("a replay");
    let later = replay
        .prediction(&[Change::AsyncOutput])
        .expect("it is tried");
    // The host's 1.2 ms and the device's 1.0 ms run concurrently.
    assert!(
        (1_000_000..1_350_000).contains(&later.likely_ns),
        "{later:?}"
    );
    assert!(!codes(&report).contains(&Code::NothingToGain));
}

#[test]
fn named_ranges_are_tried_as_stages() {
    let program = Program::of(STEPS, 60, |program, start, step| {
        let device = START_US + 70 + step * 804;
        program.range("user_annotation", "encoder", (start, 20));
        program.kernel_of("encode", 40, OTHER, start + 2, (device, 400));
        program.range("user_annotation", "decoder", (start + 25, 20));
        program.kernel_of("decode", 40, OTHER, start + 27, (device + 402, 400));
    });
    let report = report(&program);
    let found = finding(&report, Code::SerialStages);
    assert_eq!(found.saving_ns.likely, 0, "{found:?}");
    assert!(
        found
            .text
            .starts_with("encoder and decoder follow each other"),
        "{}",
        found.text
    );
    let set = Change::set("no-sync,pipeline=encoder,decoder,graphs").expect("changes");
    assert_eq!(
        Change::names(&set),
        "no-sync,graphs,pipeline=encoder,decoder"
    );
    let replay = report.replay.expect("a replay");
    let stages = vec!["encoder".to_owned(), "decoder".to_owned()];
    let staged = replay
        .prediction(&[Change::Pipeline(stages)])
        .expect("it is tried");
    assert!((395_000..440_000).contains(&staged.likely_ns), "{staged:?}");
}

#[test]
fn too_little_work_is_not_judged() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    program.kernel(DEFAULT, 0, (10, 5));
    let report = report(&program);
    assert_eq!(report.findings, []);
    let warning = report.warnings.iter().find(|w| w.code == "TOO_LITTLE");
    assert_eq!(
        warning.map(|w| &*w.text),
        Some("the trace has 1 GPU operation: too few to judge a program by")
    );
}

#[test]
fn unexplained_idle_time_is_reported() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    program.call("cudaGetDevice", (0, 1));
    for at in 0..20 {
        let name = format!("k{at}");
        program.orphan(&name, DEFAULT, (100 + at * 1_000, 300));
    }
    let report = report(&program);
    let warning = report.warnings.iter().find(|w| w.code == "UNATTRIBUTED");
    assert!(warning.is_some_and(|w| w.text.contains("no call in the trace")));
    assert!(!codes(&report).contains(&Code::NothingToGain));
}

#[test]
fn letters_that_turn_text_around_do_not_reach_a_terminal() {
    let mut program = Program::of(0, 0, |_, _, _| {});
    for at in 0..12 {
        program.kernel(DEFAULT, at * 1_000, (10 + at * 1_000, 5));
    }
    program.range("user_annotation", "x\u{202e}y", (10, 5));
    let json = String::from_utf8(program.json())
        .expect("text")
        .replace("H200", "H200\u{202e}");
    let page = text("a\u{202e}b", &of_json(json.as_bytes()), 80);
    assert!(!page.contains('\u{202e}'), "{page}");
    assert!(page.contains("H200\\u{202e}"), "{page}");
}

#[test]
fn links_are_those_of_their_device() {
    for (name, gb_per_s) in [
        ("NVIDIA GeForce RTX 2080 Ti", 12.5),
        ("NVIDIA GeForce RTX 3090", 25.0),
        ("Tesla V100-SXM2-16GB", 12.5),
        ("NVIDIA GH200 480GB", 370.0),
        ("NVIDIA H200", 55.0),
        ("NVIDIA A100-SXM4-80GB", 25.0),
    ] {
        let program = busy();
        let json = String::from_utf8(program.json())
            .expect("text")
            .replace("NVIDIA H200", name);
        assert_eq!(of_json(json.as_bytes()).link.0, gb_per_s, "{name}");
    }
}

/// Returns a program whose device always works, far behind the host.
fn busy() -> Program {
    Program::of(STEPS, 20, |program, start, step| {
        program.kernel(DEFAULT, start + 2, (START_US + 50 + step * 600, 599));
    })
}

#[test]
fn many_devices_are_looked_at_once_each() {
    let mut rows = Vec::new();
    for device in 0..20_000 {
        rows.push(format!(
            "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":{device},\"tid\":7,\"ts\":{},\"dur\":1,\
             \"args\":{{\"device\":{device},\"stream\":7,\"correlation\":{device}}}}}",
            2 * device
        ));
    }
    let report = of_json(format!("{{\"traceEvents\":[{}]}}", rows.join(",")).as_bytes());
    assert_eq!(report.devices.len(), 20_000);
    assert!(text("t", &report, 80).contains("19984 more devices are left out"));
}

/// Gradients of 160 MB that each step copies back: in the stream of the kernels, the next step begins when they have arrived;
/// if the host waits for them, the device is idle until it launches again.
#[test]
fn gradients_that_each_step_copies_back_are_named_with_what_hides_them() {
    let of = |is_waited_for: bool| {
        let length = if is_waited_for { 10_500 } else { 10_000 };
        report(&Program::of(STEPS, length, |program, start, _| {
            // Work that is not waited for continues into the next step.
            let gpu = start + if is_waited_for { 400 } else { 2_900 };
            let up = (gpu, 1_000);
            program.copy("Pinned -> Device", 50_000_000, DEFAULT, (start + 10, 8), up);
            for at in 0..10 {
                let span = (gpu + 1_005 + at * 590, 585);
                program.kernel(DEFAULT, start + 30 + at * 10, span);
            }
            // The host waits until the loss is known; the gradients have not been copied yet.
            let known = gpu + 6_915;
            program.call("cudaStreamSynchronize", (start + 220, known - start - 220));
            let (call, back) = ((known + 10, 8), (known + 20, 3_000));
            program.copy("Device -> Pinned", 160_000_000, DEFAULT, call, back);
            if is_waited_for {
                program.call("cudaStreamSynchronize", (known + 25, 3_000));
            }
        }))
    };
    let is_named = |found: &Finding| found.evidence.iter().any(|one| one.what.contains("DtoH"));
    let queued = of(false);
    let found = finding(&queued, Code::CopyOnComputeStream);
    assert!(
        found.text.starts_with("copies of 210.0 MB in a step"),
        "{}",
        found.text
    );
    assert!(found.changes.contains(&Change::Prefetch(2)), "{found:#?}");
    assert!(
        part(&queued, found.saving_ns.likely) > 0.25 && is_named(found),
        "{found:#?}"
    );
    let waited = of(true);
    let found = finding(&waited, Code::BlockingCopy);
    assert!(found.changes.contains(&Change::AsyncOutput), "{found:#?}");
    assert!(is_named(found), "{found:#?}");
    let replay = waited.replay.as_ref().expect("a replay");
    let tried = replay
        .predictions
        .iter()
        .filter(|p| !p.changes.iter().any(Change::is_conditional));
    let best = tried.min_by_key(|p| p.likely_ns).expect("predictions");
    let gain = 1.0 - best.likely_ns as f64 / replay.unprofiled_ns as f64;
    assert!(
        gain > 0.25,
        "{:?} {gain}\n{}",
        best.changes,
        text("t", &waited, 200)
    );
}
