//! Tests the advice: by where launches are made, what the host's own work is for, and what happens once in a trace.

use crate::fixtures::Folder;
use crate::fixtures::program::{DEFAULT, Program, START_US};
use crate::verdicts::{LOADS, STEPS, codes, finding, report};
use rusqlite::Connection;
use sidestream_diagnose::{Cause, Change, Code, Limits, Options, Report, read};

/// Reads an export of Nsight Systems with a kernel of 100 ms, and more rows.
fn export(name: &str, rows: &str) -> Report {
    let folder = Folder::new(name);
    let path = folder.file("unified.sqlite");
    let database = Connection::open(&path).expect("a database");
    let place = "deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT";
    let sql = format!(
        "CREATE TABLE StringIds (id INT, value TEXT);
         INSERT INTO StringIds VALUES (1, 'touch'), (2, 'cudaLaunchKernel_v7000');
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, \"end\" INT, globalTid INT, correlationId INT, nameId INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 5000, 16777217, 9, 2);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, \"end\" INT, {place}, demangledName INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10000, 100010000, 0, 1, 7, 9, 16777216, 1);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, \"end\" INT, {place}, bytes INT, copyKind INT, srcKind INT,
         dstKind INT, migrationCause INT);
         {rows}"
    );
    database.execute_batch(&sql).expect("an export");
    drop(database);
    let trace = read(&path, &Limits::default(), &mut |_, _| {}).expect("a trace");
    Report::of(trace, &Options::default())
}

/// Returns a page migration at a moment, with the copy kind and the cause that exports use for it.
fn migration(start: i64, kind: i64, cause: &str) -> String {
    format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({start}, {start} + 4000, 0, 0, 0, 0, 16777216, 65536, {kind}, 7, 7, \
         {cause});"
    )
}

/// Returns the report on pages that migrate during the kernel.
fn unified(migrations: i64, cause: &str) -> Report {
    let rows = (0..migrations).map(|at| migration(20_000 + at * 1_000_000, 11, cause));
    export(
        &format!("unified-{migrations}-{cause}"),
        &rows.collect::<String>(),
    )
}

#[test]
fn a_page_that_the_host_touches_does_not_hide_what_the_host_does() {
    // The host does its own work for 120 ms, reads a page, and launches again.
    let rows = migration(180_000_000, 12, "2")
        + "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (220000000, 220005000, 16777217, 10, 2);
           INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (220010000, 320010000, 0, 1, 7, 10, 16777216, 1);";
    let report = export("unified-host", &rows);
    let idle = &report.devices[0].1.by_cause;
    assert!(!idle.contains_key(&Cause::Unattributed), "{idle:?}");
    assert!(idle[&Cause::Initialisation] > 119_000_000, "{idle:?}");
}

#[test]
fn pages_that_migrate_under_a_kernel_are_found_and_are_not_copies() {
    let report = unified(90, "2");
    let found = &report.findings[0];
    assert_eq!(found.code, Code::UnifiedMemory, "{:#?}", report.findings);
    assert_eq!(found.code.as_str(), "UNIFIED_MEMORY");
    // The kernel may have been stalled from the first migration to the last: 89 ms of its 100.
    assert_eq!(found.saving_ns.high, 89_004_000, "{found:?}");
    assert_eq!(found.evidence[0].what, "touch");
    assert!(
        found.text.contains("90 under one launch of touch"),
        "{}",
        found.text
    );
    assert!(
        found
            .text
            .contains("90 migrations in the trace, of 5898.2 kB, 90"),
        "{}",
        found.text
    );
    let codes: Vec<&str> = report.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, [""; 0]);
    assert_eq!(report.devices[0].0.host_copy_ns, 0);
    // A prefetch by the program is a copy, and not a finding.
    let asked = unified(90, "1");
    assert!(!self::codes(&asked).contains(&Code::UnifiedMemory));
    // A few migrations are not a finding either.
    assert!(!self::codes(&unified(9, "2")).contains(&Code::UnifiedMemory));
}

/// Adds operators of a step that launch one kernel each, at equal intervals.
fn launches(program: &mut Program, start: i64, names: &[&str], (each, kernel): (i64, i64)) -> i64 {
    for (at, name) in (0..).zip(names) {
        let begun = start + at * each;
        program.range("cpu_op", name, (begun, each - 2));
        program.kernel(DEFAULT, begun + 5, (begun + 14, kernel));
    }
    start + names.len() as i64 * each
}

#[track_caller]
fn advice(program: &Program) -> String {
    let report = report(program);
    finding(&report, Code::LaunchBound).text.clone()
}

#[test]
fn no_graph_is_advised_where_launches_are_captured_or_batched() {
    let mut captures = Program::of(0, 0, |_, _, _| {});
    let mut start = START_US;
    for size in 0..8 {
        // Graphs of several sizes, each run once before it is captured.
        let names = vec!["aten::mm"; 30 + size];
        start = launches(&mut captures, start, &names, (30, 4));
        captures.call("cudaStreamBeginCapture", (start, 10));
        for at in 0..names.len() as i64 {
            captures.call("cudaLaunchKernel", (start + 12 + at * 20, 5));
        }
        captures.call("cudaStreamEndCapture", (start + 2_000, 10));
        start += 2_020;
    }
    let text = advice(&captures);
    assert!(text.contains("graphs are captured here"), "{text}");
    assert!(!text.contains("torch.compile"), "{text}");

    let graphs = Program::of(STEPS, 1_500, |program, start, _| {
        for at in 0..12 {
            let launched = start + at * 120;
            program.graph((launched, 10), &[(launched + 12, 14), (launched + 27, 14)]);
        }
    });
    let text = advice(&graphs);
    assert!(
        text.contains("the launches are of graphs already"),
        "{text}"
    );
    assert!(!text.contains("torch.compile"), "{text}");

    let compiled = Program::of(STEPS, 1_300, |program, start, _| {
        program.range(
            "user_annotation",
            "## Call CompiledFxGraph fabc ##",
            (start, 1_290),
        );
        launches(program, start, &["triton"; 30], (40, 6));
    });
    let report = report(&compiled);
    let text = &finding(&report, Code::LaunchBound).text;
    assert!(text.contains("this code is compiled already"), "{text}");
    assert!(!text.contains("torch.compile"), "{text}");
    let replay = report.replay.as_ref().expect("a replay");
    let graphs = replay.prediction(&[Change::Graphs]).expect("it is listed");
    assert!(!graphs.is_effective);
}

#[test]
fn no_graph_is_advised_for_a_few_operations() {
    let step = |count: usize| {
        Program::of(STEPS, 60 * count as i64, move |program, start, _| {
            launches(program, start, &vec!["aten::mm"; count], (60, 10));
        })
    };
    let few = advice(&step(3));
    assert!(few.contains("too few for a graph"), "{few}");
    assert!(!few.contains("torch.compile"), "{few}");
    assert!(advice(&step(40)).contains("a CUDA graph or `torch.compile` submits many at once"));
    // The upper bound for launches does not rank before a wait whose gain is known.
    let waits = report(&Program::of(STEPS, 1_000, |program, start, _| {
        let begun = launches(program, start, &["aten::mm"; 3], (150, 10));
        program.copy(
            "Pinned -> Device",
            1_000_000,
            DEFAULT,
            (begun, 5),
            (begun + 10, 500),
        );
        program.call("cudaDeviceSynchronize", (begun + 10, 505));
    }));
    let found = codes(&waits);
    let place = |code| found.iter().position(|one| *one == code);
    assert!(place(Code::SyncInStep).is_some(), "{found:?}");
    assert!(
        place(Code::SyncInStep) < place(Code::LaunchBound),
        "{found:?}"
    );
    // Without steps, and with fewer than ten operations, there is no advice.
    let mut five = Program::of(0, 0, |_, _, _| {});
    for at in 0..5 {
        five.kernel(
            DEFAULT,
            START_US + at * 2_000,
            (START_US + at * 2_000 + 8, 100),
        );
    }
    assert_eq!(report(&five).findings, []);
}

#[test]
fn the_part_of_a_step_that_launches_most_is_named_with_what_fuses_it() {
    let step = |operator: &'static str, region: &'static str| {
        Program::of(STEPS, 3_500, move |program, start, _| {
            let begun = launches(program, start, &["aten::linear"; 12], (30, 60));
            let end = launches(program, begun + 1, &[operator; 120], (20, 2));
            program.range("user_annotation", region, (begun, end - begun));
        })
    };
    let adam = "Optimizer.step#Adam.step";
    let single = report(&step("aten::mul_", adam));
    let text = &finding(&single, Code::LaunchBound).text;
    assert!(
        text.contains(&format!("of all idle time lies in {adam}")),
        "{text}"
    );
    assert!(
        text.contains("with `fused=True`, or `foreach=True`, Optimizer.step"),
        "{text}"
    );
    assert!(
        text.contains("in the replay `fused=Optimizer.step#Adam.step` by itself"),
        "{text}"
    );
    let replay = single.replay.as_ref().expect("a replay");
    let fused = replay
        .prediction(&[Change::Fused(adam.to_owned())])
        .expect("it is tried");
    let gained = 1.0 - fused.likely_ns as f64 / replay.unprofiled_ns as f64;
    assert!((0.3..0.75).contains(&gained), "{gained}");
    let foreach = advice(&step("aten::_foreach_add_", adam));
    assert!(
        foreach.contains("with `fused=True` Optimizer.step"),
        "{foreach}"
    );
    assert!(!foreach.contains("`foreach=True`"), "{foreach}");
    let already = advice(&step("aten::_fused_adam_", adam));
    assert!(!already.contains("fused=True"), "{already}");

    // A loop over cells of a recurrent network.
    let cells = Program::of(STEPS, 7_000, |program, start, _| {
        for at in 0..64 {
            let cell = start + at * 100;
            program.range("cpu_op", "aten::lstm_cell", (cell, 95));
            launches(program, cell + 1, &["aten::linear"; 3], (30, 5));
        }
    });
    let text = advice(&cells);
    assert!(text.contains("one call of `nn.LSTM`"), "{text}");
    assert!(
        text.contains("in the replay `fused=aten::lstm_cell` by itself"),
        "{text}"
    );
    assert!(
        text.contains("most for those in aten::lstm_cell ("),
        "{text}"
    );
    let set = Change::set("graphs,fused=Optimizer.step#Adam.step").expect("changes");
    assert_eq!(Change::names(&set), "fused=Optimizer.step#Adam.step,graphs");
}

#[test]
fn workers_are_not_advised_for_parts_of_a_step() {
    let step = |region: &'static str| {
        report(&Program::of(STEPS, 6_700, move |program, start, _| {
            let begun = launches(program, start, &["aten::linear"; 20], (30, 28));
            program.range("user_annotation", region, (begun, 6_050));
            program.range("cpu_op", "aten::mul", (begun + 1, 6_000));
            program.kernel(DEFAULT, begun + 6_010, (begun + 6_020, 10));
        }))
    };
    for (region, advice) in [
        (
            "Optimizer.step#EMA.step",
            "workers cannot run the optimizer ahead of the step",
        ),
        (
            "Optimizer.zero_grad#SGD.zero_grad",
            "workers cannot run the optimizer",
        ),
        (
            "autograd::engine::evaluate_function: MulBackward0",
            "workers cannot run the model's own passes",
        ),
    ] {
        let report = step(region);
        let found = finding(&report, Code::HostWork);
        assert!(found.text.contains(advice), "{}", found.text);
        assert!(!found.text.contains("workers could"), "{}", found.text);
        assert_eq!(found.saving_ns.likely, 0, "{found:?}");
        assert_eq!(found.changes, []);
    }
    // Most of the time has no name.
    let unnamed = report(&Program::of(STEPS, 8_000, |program, start, _| {
        program.range(
            "user_annotation",
            "Optimizer.zero_grad#SGD.zero_grad",
            (start, 600),
        );
        program.kernel(DEFAULT, start + 620, (start + 630, 10));
        program.kernel(DEFAULT, start + 7_000, (start + 7_010, 985));
    }));
    let text = &finding(&unnamed, Code::HostWork).text;
    assert!(
        text.contains(
            "of it has no name in the trace; the named part is mostly Optimizer.zero_grad"
        ),
        "{text}"
    );
    assert!(text.contains("; if it makes data, workers could"), "{text}");
    assert!(!text.contains("run the optimizer ahead"), "{text}");
    // The next upload shows that the work prepared its data, regardless of the name of the work.
    let uploaded = report(&Program::of(STEPS, 8_000, |program, start, _| {
        program.range("cpu_op", "aten::normal_", (start, 5_990));
        let call = (start + 6_000, 400);
        program.copy("Pageable -> Device", 4_000_000, DEFAULT, call, call);
        program.kernel(DEFAULT, start + 6_500, (start + 6_510, 1_000));
    }));
    let text = &finding(&uploaded, Code::HostWork).text;
    assert!(text.contains("; workers could do it ahead"), "{text}");
    let data = step("make_batch");
    let found = finding(&data, Code::HostWork);
    assert!(
        found.text.contains("workers could do it ahead"),
        "{}",
        found.text
    );
    assert_eq!(found.changes, [Change::HostWork(8)]);
}

/// The thread of the backward pass is idle while the main thread loads data and runs the forward pass. This idle time does not
/// count as its own work.
#[test]
fn a_thread_that_waits_for_another_does_not_work_by_itself() {
    let program = Program::of(12, 40_000, |program, start, _| {
        program.range("user_annotation", LOADS, (start, 30_000));
        let start = start + 30_010;
        let begun = launches(program, start, &["aten::linear"; 20], (30, 120));
        for at in 0..60 {
            let begun = begun + 100 + at * 30;
            program.on_backward_thread(begun, (begun + 14 + at * 70, 95));
        }
        program.call("cudaDeviceSynchronize", (begun + 2_000, 7_380));
    });
    let report = report(&program);
    assert_eq!(
        report.findings[0].code,
        Code::HostStarved,
        "{:#?}",
        report.findings
    );
    assert!(
        !codes(&report).contains(&Code::HostWork),
        "{:#?}",
        report.findings
    );
}

#[test]
fn long_work_that_happens_once_without_steps_is_one_time_work() {
    let once = |between: &dyn Fn(&mut Program, i64)| {
        let mut program = Program::of(0, 0, |_, _, _| {});
        for half in 0..2 {
            for at in 0..40 {
                let launched = START_US + half * 32_400 + at * 310;
                program.kernel(DEFAULT, launched, (launched + 8, 300));
            }
        }
        between(&mut program, START_US + 12_400);
        report(&program)
    };
    let blank = once(&|_, _| {});
    assert_eq!(
        codes(&blank),
        [Code::Initialisation],
        "{:#?}",
        blank.findings
    );
    assert!(
        blank.findings[0]
            .text
            .contains("the trace shows nothing, once")
    );
    let named = once(&|program, start| {
        program.range("user_annotation", "warm up", (start, 19_990));
    });
    assert_eq!(
        codes(&named),
        [Code::Initialisation],
        "{:#?}",
        named.findings
    );
    assert!(named.findings[0].text.contains("most of all in warm up"));
    for name in ["NVRTC compile", "CUDAGraphNode.record (dynamo_timed)"] {
        // Compilation and graph capture may recur, for other code and for other graphs.
        let compiles = once(&|program, start| {
            program.range("user_annotation", name, (start, 9_000));
            program.range("user_annotation", name, (start + 9_500, 9_000));
        });
        let idle = &compiles.devices[0].1.by_cause;
        assert!(
            idle[&Cause::Initialisation] >= 18_000_000,
            "{name}: {idle:?}"
        );
    }
}
