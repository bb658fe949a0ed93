//! Tests each finding: a written trace that has it and its fixed twin that has not, and traces of an H200 with the measured
//! gains.

use std::path::{Path, PathBuf};

use crate::fixtures::program::{DEFAULT, Program, START_US};
use sidestream_diagnose::{Cause, Change, Code, Finding, Limits, Options, Report, read, read_json};

const STEPS: i64 = 12;
/// A stream that is not the default one.
const OTHER: u32 = 20;

fn written(program: &Program) -> Report {
    let trace = read_json(&program.json(), &Limits::default()).expect("a trace");
    let report = Report::of(trace, &Options::default());
    sound("a written trace", &report);
    report
}

fn read_report(path: &Path) -> Report {
    let trace = read(path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    let report = Report::of(trace, &Options::default());
    sound(&path.display().to_string(), &report);
    report
}

fn recorded(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    read_report(&folder.join(format!("{name}.json.gz")))
}

/// Checks what holds for every report.
#[track_caller]
fn sound(name: &str, report: &Report) {
    for (device, idle) in &report.devices {
        let causes: u64 = idle.by_cause.values().sum();
        assert_eq!(
            causes,
            device.idle_ns(),
            "{name}: each idle nanosecond once"
        );
    }
    let step_ns = report.judged_step_ns().max(report.step_ns());
    for finding in &report.findings {
        let saving = finding.saving_ns;
        let in_order = saving.low <= saving.likely && saving.likely <= saving.high;
        assert!(in_order, "{name}: {finding:?}");
        assert!(
            saving.high <= step_ns.saturating_sub(finding.floor_ns),
            "{name}: {finding:?}"
        );
        assert!((0.0..=1.0).contains(&finding.share), "{name}: {finding:?}");
    }
    agree(name, report);
}

/// Checks that findings, predictions and the verdict that nothing is to be gained do not contradict each other.
#[track_caller]
fn agree(name: &str, report: &Report) {
    let nothing = report
        .findings
        .iter()
        .any(|f| f.code == Code::NothingToGain);
    let Ok(replay) = &report.replay else {
        // Without a replay there is no likely gain.
        assert!(
            report.findings.iter().all(|f| f.saving_ns.likely == 0),
            "{name}"
        );
        return;
    };
    if report.steps.mean_ns().is_none() {
        assert!(
            report.findings.iter().all(|f| f.saving_ns.likely == 0),
            "{name}"
        );
    }
    for finding in &report.findings {
        let Some(prediction) = replay.prediction(&finding.changes) else {
            continue;
        };
        let gain = replay.unprofiled_ns.saturating_sub(prediction.likely_ns);
        assert!(
            finding.saving_ns.high <= replay.unprofiled_ns,
            "{name}: {finding:?}"
        );
        if finding.changes.len() == 1 {
            assert!(
                finding.saving_ns.low <= gain && gain <= finding.saving_ns.high,
                "{name}: {finding:?}"
            );
        }
    }
    for prediction in &replay.predictions {
        assert!(prediction.low_ns <= prediction.likely_ns, "{name}");
        assert!(prediction.likely_ns <= prediction.high_ns, "{name}");
        let is_conditional = prediction.changes.iter().any(Change::is_conditional);
        let gain = replay.unprofiled_ns.saturating_sub(prediction.likely_ns) as f64;
        if nothing && !is_conditional {
            assert!(
                gain < 0.05 * replay.unprofiled_ns as f64,
                "{name}: {:?}",
                prediction.changes
            );
        }
    }
    for (device, _) in report
        .devices
        .iter()
        .filter(|_| nothing && report.devices.len() == 1)
    {
        assert!(device.idle_ns() * 10 <= device.span_ns, "{name}");
    }
}

fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|f| f.code).collect()
}

#[track_caller]
fn finding(report: &Report, code: Code) -> &Finding {
    let found = report.findings.iter().find(|f| f.code == code);
    found.unwrap_or_else(|| panic!("{code:?} is not in {:#?}", report.findings))
}

/// Checks that the first trace has the finding, and its fixed twin has not.
#[track_caller]
fn check(code: Code, broken: &Program, repaired: &Program) -> Finding {
    let report = written(broken);
    let twin = written(repaired);
    assert!(!codes(&twin).contains(&code), "{:#?}", twin.findings);
    finding(&report, code).clone()
}

/// Returns a program whose device always works, far behind the host.
fn busy() -> Program {
    Program::of(STEPS, 20, |program, start, step| {
        program.kernel(DEFAULT, start + 2, (START_US + 50 + step * 600, 599));
    })
}

/// Returns a program in which each step waits for the device before the next begins, in a way that the caller chooses.
fn waiting(wait: impl Fn(&mut Program, i64)) -> Program {
    Program::of(STEPS, 1_000, |program, start, _| {
        program.kernel(DEFAULT, start + 50, (start + 60, 600));
        wait(program, start);
    })
}

#[test]
fn copies_from_pageable_memory_are_worth_what_pinned_ones_take_less() {
    let upload = |kind: &'static str, us| {
        Program::of(STEPS, us + 500, move |program, start, _| {
            program.copy(
                kind,
                5_000_000,
                DEFAULT,
                (start + 5, us),
                (start + 10, us - 5),
            );
            program.kernel(DEFAULT, start + us + 6, (start + us + 15, 480));
        })
    };
    let broken = upload("Pageable -> Device", 400);
    let found = check(Code::PageableCopy, &broken, &upload("Pinned -> Device", 95));
    // 5 MB take 91 µs at 55 GB/s instead of 395 µs.
    let likely = found.saving_ns.likely;
    assert!((280_000..330_000).contains(&likely), "{found:?}");
    assert_eq!(found.evidence[0].call.as_deref(), Some("cudaMemcpyAsync"));
}

#[test]
fn a_copy_that_blocks_costs_the_idle_time_after_it() {
    let broken = waiting(|program, start| {
        program.copy(
            "Device -> Pageable",
            64,
            DEFAULT,
            (start + 65, 605),
            (start + 661, 2),
        );
    });
    let found = check(Code::BlockingCopy, &broken, &busy());
    // Without the profiler the host returns sooner, so the gain is less than the 397 µs of the trace.
    assert!(
        (250_000..397_000).contains(&found.saving_ns.likely),
        "{found:?}"
    );
}

#[test]
fn a_framework_that_waits_for_its_own_copy_blocks_by_that_copy() {
    let program = waiting(|program, start| {
        program.range("cpu_op", "aten::copy_", (start + 65, 620));
        program.copy(
            "Device -> Pinned",
            64,
            DEFAULT,
            (start + 66, 5),
            (start + 661, 2),
        );
        program.call("cudaStreamSynchronize", (start + 72, 600));
    });
    let report = written(&program);
    assert!(!codes(&report).contains(&Code::SyncInStep));
    let found = finding(&report, Code::BlockingCopy);
    assert!(found.text.contains("in aten::copy_"), "{}", found.text);
}

#[test]
fn a_synchronisation_is_named_with_the_operators_around_it() {
    let broken = waiting(|program, start| {
        program.range("cpu_op", "aten::item", (start + 70, 620));
        program.range("cpu_op", "aten::_local_scalar_dense", (start + 72, 610));
        program.copy(
            "Device -> Pinned",
            4,
            DEFAULT,
            (start + 75, 5),
            (start + 661, 2),
        );
        program.call("cudaStreamSynchronize", (start + 85, 590));
    });
    let found = check(Code::SyncInStep, &broken, &busy());
    let place = "cudaStreamSynchronize in aten::item > aten::_local_scalar_dense";
    assert!(found.text.contains(place), "{}", found.text);
    let operators = ["aten::item", "aten::_local_scalar_dense"];
    assert_eq!(found.evidence[0].operators, operators);
    // 397 of 1000 µs are idle under the profiler: less without it.
    assert!(
        (250_000..397_000).contains(&found.saving_ns.likely),
        "{found:?}"
    );
}

#[test]
fn each_wait_inside_an_operator_is_named_with_the_operators_around_it() {
    let waits: [(Code, &str, &[&str]); 4] = [
        (
            Code::SyncInStep,
            "Device -> Pinned",
            &[
                "aten::is_nonzero",
                "aten::item",
                "aten::_local_scalar_dense",
            ],
        ),
        (Code::SyncInStep, "Device -> Pinned", &["aten::nonzero"]),
        (
            Code::BlockingCopy,
            "Device -> Pageable",
            &["aten::to", "aten::_to_copy", "aten::copy_"],
        ),
        (Code::BlockingCopy, "Device -> Pageable", &["aten::copy_"]),
    ];
    for (code, copied, operators) in waits {
        let broken = waiting(|program, start| {
            for (depth, operator) in (0..).zip(operators) {
                program.range("cpu_op", operator, (start + 66 + depth, 630 - 2 * depth));
            }
            let span = (start + 661, 2);
            program.copy(copied, 4, DEFAULT, (start + 75, 5), span);
            program.call("cudaStreamSynchronize", (start + 85, 590));
        });
        let found = check(code, &broken, &busy());
        let place = operators.join(" > ");
        let is_named = found.evidence.iter().any(|one| one.operators == operators);
        assert!(
            is_named && found.text.contains(&place),
            "{place}: {found:?}"
        );
    }
}

#[test]
fn memory_that_is_freed_inside_a_step_is_a_synchronisation() {
    for call in ["cudaFree", "cudaDeviceSynchronize", "cudaEventSynchronize"] {
        let broken = waiting(|program, start| program.call(call, (start + 70, 600)));
        let found = check(Code::SyncInStep, &broken, &busy());
        assert!(found.text.contains(call), "{}", found.text);
    }
}

#[test]
fn a_wait_without_idle_time_is_not_a_finding() {
    let program = Program::of(STEPS, 1_000, |program, start, _| {
        program.kernel(DEFAULT, start + 2, (start + 5, 990));
        program.call("cudaDeviceSynchronize", (start + 10, 987));
    });
    assert_eq!(codes(&written(&program)), [Code::NothingToGain]);
}

#[test]
fn copies_in_the_stream_of_the_kernels_gain_what_is_not_covered() {
    let upload = |stream, kernel_at| {
        Program::of(STEPS, 20, move |program, start, step| {
            let device = START_US + 50 + step * 600;
            let span = (device, 95);
            program.copy("Pinned -> Device", 5_000_000, stream, (start + 1, 3), span);
            program.kernel(DEFAULT, start + 6, (device + kernel_at, 599 - kernel_at));
        })
    };
    let found = check(
        Code::CopyOnComputeStream,
        &upload(DEFAULT, 97),
        &upload(OTHER, 0),
    );
    assert!(
        (80_000..100_000).contains(&found.saving_ns.likely),
        "{found:?}"
    );
}

/// Returns a program of two streams that take turns, with the host far ahead.
fn turns(streams: [u32; 2], with_events: bool, other_at: i64) -> Program {
    Program::of(STEPS, 20, move |program, start, step| {
        let device = START_US + 50 + step * 304;
        program.kernel_of("small", 16, streams[0], start + 1, (device, 100));
        if with_events {
            program.call("cudaEventRecord", (start + 6, 1));
            program.call("cudaStreamWaitEvent", (start + 7, 1));
        }
        program.kernel_of("small", 16, streams[1], start + 8, (device + other_at, 200));
        if with_events {
            program.call("cudaEventRecord", (start + 14, 1));
            program.call("cudaStreamWaitEvent", (start + 15, 1));
        }
    })
}

#[test]
fn the_default_stream_and_another_that_wait_for_each_other_are_found() {
    let code = Code::DefaultStreamSerialization;
    let broken = || turns([DEFAULT, OTHER], false, 102);
    let found = check(code, &broken(), &turns([DEFAULT, OTHER], false, 0));
    assert!(found.text.contains("stream 7"), "{}", found.text);
    assert!(
        (95_000..105_000).contains(&found.saving_ns.likely),
        "{found:?}"
    );
    // Here events require the same order, as the program intends.
    check(code, &broken(), &turns([DEFAULT, OTHER], true, 102));
    // A single stream has no other to wait for, and two other streams are not the default stream.
    check(code, &broken(), &turns([DEFAULT, DEFAULT], false, 102));
    check(code, &broken(), &turns([21, OTHER], false, 102));
}

#[test]
fn a_device_that_waits_for_launches_never_waits_for_longer_than_a_step() {
    let kernels = |apart: i64| {
        Program::of(STEPS, 20 * apart, move |program, start, _| {
            for at in 0..20 {
                let launched = start + at * apart;
                program.kernel(DEFAULT, launched, (launched + 6, 5));
            }
        })
    };
    let found = check(Code::LaunchBound, &kernels(40), &kernels(5));
    assert!(
        found.text.contains("for 700.0 µs of a step of 800.0 µs"),
        "{}",
        found.text
    );
    assert!(
        found.text.contains("100 % of the 20 operations"),
        "{}",
        found.text
    );
    assert!(
        found.saving_ns.high <= 700_000 && found.saving_ns.likely > 500_000,
        "{found:?}"
    );
}

#[test]
fn a_host_that_waits_for_its_data_is_found_with_a_range() {
    let load = |us: i64| {
        Program::of(STEPS, us + 300, move |program, start, _| {
            let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
            program.range("user_annotation", name, (start + 1, us));
            program.kernel(DEFAULT, start + us + 6, (start + us + 12, 285));
        })
    };
    let found = check(Code::HostStarved, &load(700), &load(2));
    let saving = found.saving_ns;
    assert!(0 < saving.low && saving.low < saving.likely, "{found:?}");
    assert!(found.text.contains("DataLoader"), "{}", found.text);
    assert!((500_000..720_000).contains(&saving.likely), "{found:?}");
}

#[test]
fn small_kernels_in_one_stream_have_no_certain_gain() {
    let kernels = |blocks: u32, host_us: i64, apart: i64| {
        Program::of(STEPS, host_us, move |program, start, step| {
            for at in 0..4 {
                let begun = START_US + 50 + step * 4 * apart + at * apart;
                let launched = match host_us {
                    40 => start + at * 8,
                    _ => begun - 6,
                };
                program.kernel_of("small", blocks, OTHER, launched, (begun, 99));
            }
        })
    };
    let found = check(
        Code::SerialBranches,
        &kernels(16, 40, 100),
        &kernels(1056, 40, 100),
    );
    assert_eq!((found.saving_ns.low, found.saving_ns.likely), (0, 0));
    assert!(
        (190_000..215_000).contains(&found.saving_ns.high),
        "{found:?}"
    );
    assert!(found.text.contains("which no trace says"), "{}", found.text);
    // Where the host is slower a second stream gains nothing.
    check(
        Code::SerialBranches,
        &kernels(16, 40, 100),
        &kernels(16, 4 * 150, 150),
    );
}

#[test]
fn copies_that_fill_a_step_are_its_floor() {
    let copies = |us: i64| {
        Program::of(STEPS, 20, move |program, start, step| {
            let device = START_US + 50 + step * 600;
            let span = (device, us);
            program.copy("Pinned -> Device", 1_000_000, OTHER, (start + 1, 3), span);
            program.kernel(DEFAULT, start + 6, (device, 300));
        })
    };
    let found = check(Code::CopyBound, &copies(599), &copies(200));
    assert_eq!(found.saving_ns.high, 0);
}

#[test]
fn communication_is_exposed_as_far_as_nothing_is_computed() {
    let reduce = |stream, at: i64| {
        Program::of(STEPS, 20, move |program, start, step| {
            let device = START_US + 50 + step * 1_000;
            program.kernel(DEFAULT, start + 1, (device, 690));
            let span = (device + at, 300);
            program.kernel_of(
                "ncclDevKernel_AllReduce_Sum_f32",
                24,
                stream,
                start + 8,
                span,
            );
        })
    };
    let found = check(
        Code::ExposedCommunication,
        &reduce(DEFAULT, 695),
        &reduce(OTHER, 100),
    );
    assert!(
        (290_000..305_000).contains(&found.saving_ns.high),
        "{found:?}"
    );
    assert!(found.evidence[0].what.starts_with("nccl"), "{found:?}");
}

#[test]
fn time_before_the_first_step_is_not_part_of_a_step() {
    let mut broken = busy();
    broken.kernel(DEFAULT, 10, (20, 5));
    let found = check(Code::Startup, &broken, &busy());
    assert_eq!(found.saving_ns.high, 0);
}

#[test]
fn the_profilers_time_is_its_own_however_deep_its_ranges_nest() {
    let overhead = |is_there: bool| {
        Program::of(STEPS, 1_000, move |program, start, _| {
            // A gap begins after all of the inner ranges, and inside the outer one.
            program.kernel(DEFAULT, start + 394, (start + 400, 20));
            program.kernel(DEFAULT, start + 900, (start + 906, 93));
            if is_there {
                program.range("overhead", "Activity Buffer Request", (start, 890));
                for at in 0..100 {
                    program.range("overhead", "Command Buffer Full", (start + 10 + at, 1));
                }
            }
        })
    };
    let found = check(Code::ProfilerOverhead, &overhead(true), &overhead(false));
    assert!(found.share > 0.7, "{found:?}");
    let report = written(&overhead(true));
    let of_profiler = report.devices[0].1.by_cause[&Cause::ProfilerOverhead];
    assert_eq!(of_profiler, (STEPS as u64 - 1) * 870_000 + 470_000);
}

#[test]
fn launches_that_are_waited_for_are_reported_first() {
    let broken = Program::of(STEPS, 100, |program, start, _| {
        program.kernel_within((start, 60), (start + 6, 50));
    });
    let report = written(&broken);
    assert_eq!(report.findings[0].code, Code::SyncInStep);
    let text = &report.findings[0].text;
    assert!(text.starts_with("every launch was waited for"), "{text}");
    assert!(!codes(&report).contains(&Code::LaunchBound));
    assert!(report.warnings.iter().any(|w| w.code == "LAUNCH_BLOCKING"));
    let twin = written(&busy());
    assert_eq!(codes(&twin), [Code::NothingToGain]);
}

#[test]
fn a_first_step_that_takes_long_does_not_make_the_others_worse() {
    let slow_start = Program::of(STEPS, 1_000, |program, start, step| {
        let late = if step == 0 { 0 } else { 400_000 };
        let start = start + late;
        program.kernel(DEFAULT, start + 2, (start + 5, 990));
    });
    let report = written(&slow_start);
    // The run was stalled for 400 of its 412 ms, once, and not because of the steps.
    let found = codes(&report);
    assert_eq!(found, [Code::Initialisation], "{:#?}", report.findings);
    assert_eq!(report.findings[0].saving_ns.likely, 0);
}

#[test]
fn recorded_traces_have_the_faults_that_were_fixed_in_them() {
    for (name, wanted) in [
        (
            "infer_pageable.before",
            &[Code::PageableCopy, Code::BlockingCopy][..],
        ),
        (
            "blocking_download.before",
            &[Code::BlockingCopy, Code::PageableCopy],
        ),
        ("graph_upload.before", &[Code::PageableCopy]),
        ("both_ways.before", &[Code::CopyOnComputeStream]),
        ("copy_bound.before", &[Code::CopyOnComputeStream]),
        ("both_ways.after", &[Code::CopyBound]),
        ("loader_starved.before", &[Code::HostStarved]),
        ("branches_long.before", &[Code::SerialBranches]),
        ("branches_mid.before", &[Code::SerialBranches]),
        ("launch_bound.before", &[Code::LaunchBound]),
        ("branches_tiny.before", &[Code::LaunchBound]),
        (
            "sync_gpu_bound.before",
            &[Code::SyncInStep, Code::NothingToGain],
        ),
    ] {
        let report = recorded(name);
        for code in wanted {
            finding(&report, *code);
        }
        assert_eq!(report.findings[0].code, wanted[0], "{name}");
    }
}

#[test]
fn recorded_traces_where_the_obvious_change_gained_nothing_say_so() {
    for name in [
        "sync_gpu_bound.before",
        "sync_gpu_bound.after",
        "pageable_small.before",
        "pageable_small.after",
        "graphs_gpu_bound.before",
        "graphs_gpu_bound.after",
        "branches_full.before",
        "branches_full.after",
        "branches_mid.after",
        "both_ways.after",
    ] {
        let codes = codes(&recorded(name));
        assert!(codes.contains(&Code::NothingToGain), "{name}: {codes:?}");
    }
    for name in ["legacy.before", "legacy.after", "branches_tiny.before"] {
        let codes = codes(&recorded(name));
        let second = [Code::DefaultStreamSerialization, Code::SerialBranches];
        assert!(
            second.iter().all(|code| !codes.contains(code)),
            "{name}: {codes:?}"
        );
    }
}

/// Traces of other projects are not in the repository: `SIDESTREAM_PUBLIC_TRACES` names their folder.
#[test]
fn traces_of_other_projects_are_explained() {
    let folder = std::env::var_os("SIDESTREAM_PUBLIC_TRACES").map(PathBuf::from);
    let Some(folder) = folder.filter(|folder| folder.exists()) else {
        println!("SIDESTREAM_PUBLIC_TRACES names no folder with traces of other projects");
        return;
    };
    let b200 = read_report(&folder.join("tracelens_b200_eager_launch_bound.json.gz"));
    assert_eq!(b200.findings[0].code, Code::LaunchBound);
    for name in [
        "tl_sglang_decode",
        "pt_fwd_512",
        "hta_a100_alexnet_cuda_sync",
    ] {
        let report = read_report(&folder.join(format!("{name}.json.gz")));
        assert!(!codes(&report).contains(&Code::NothingToGain), "{name}");
    }
    let waits = read_report(&folder.join("tl_sglang_decode.json.gz"));
    assert_eq!(waits.findings[0].code, Code::StreamWait);
    let name = "param_2080ti_resnet_pageable_starved.json.gz";
    let stalled = read_report(&folder.join(name));
    assert_eq!(stalled.findings[0].code, Code::HostStarved);
    let sampled = read_report(&folder.join("hta_sampled_rank-0.json.gz"));
    assert!(!codes(&sampled).contains(&Code::DefaultStreamSerialization));
    let made = read_report(&folder.join("kernelforge_log.pt.trace.json.gz"));
    assert_eq!(made.findings[0].code, Code::HostWork);
    let name = "kineto2021_v100_resnet50_workers0.pt.trace.json.gz";
    let starved = &read_report(&folder.join(name)).findings[0];
    assert_eq!(starved.code, Code::HostStarved);
    assert!(starved.saving_ns.low < starved.saving_ns.likely);
    let sync = read_report(&folder.join("pipit_a100_cloverleaf_sync_each_kernel.sqlite"));
    assert_eq!(sync.findings[0].code, Code::SyncInStep);
    let step_ns = sync.judged_step_ns() as f64;
    let likely = sync.findings[0].saving_ns.likely as f64;
    assert!(likely <= 0.113 * step_ns, "{likely}");
    let two = read_report(&folder.join("nsysai_mfu_2gpu_before.sqlite"));
    finding(&two, Code::ExposedCommunication);
    let four = read_report(&folder.join("hta_a100_4stream_pinned_overlap.json.gz"));
    let codes = codes(&four);
    let none = [Code::PageableCopy, Code::DefaultStreamSerialization];
    assert!(none.iter().all(|code| !codes.contains(code)), "{codes:?}");
}
