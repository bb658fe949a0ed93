//! Runs programs through the explicit style of the library, on simulated devices.

use std::collections::BTreeMap;
use std::path::Path;

use sidestream::device::{Device, Options};
use sidestream::sim::Schedule;
use sidestream_program::{Limits, OnDevice, Plan, Program, check, differing, parse, run_on};

fn program(text: &str) -> Program {
    let mut document = parse(text, &Limits::default()).expect("a document");
    document.programs.remove(0).expect("follows the format")
}

fn ran(plan: &Plan<'_>, schedule: Schedule) -> OnDevice {
    let options = Options::new().schedule(schedule).notice(|_| ());
    let devices = Device::open_all(&vec!["sim:h200"; plan.devices()], &options).unwrap();
    run_on(plan, &devices).expect("it runs")
}

/// Returns every file of `examples/streams`.
fn examples() -> BTreeMap<String, Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/streams");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut programs = BTreeMap::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        programs.insert(name, program(&std::fs::read_to_string(&path).unwrap()));
    }
    programs
}

#[test]
fn programs_without_a_race_compute_the_same_in_every_order() {
    let (mut compared, mut outside) = (0, Vec::new());
    for (name, program) in examples() {
        let Ok(plan) = Plan::of(&program) else {
            outside.push(name);
            continue;
        };
        // The other programs repeat one of these, or race.
        if !name.ends_with(".fixed.yaml") || !check(&program).report.races.is_empty() {
            continue;
        }
        let usual = ran(&plan, Schedule::InOrder);
        let late = ran(&plan, Schedule::Adversarial);
        assert!(!usual.results.is_empty(), "{name}");
        assert_eq!(differing(&usual, &late), Vec::<&_>::new(), "{name}");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
    assert_eq!(
        outside,
        [
            "multi_gpu.event.error.yaml",
            "serving.pool.serial.yaml",
            "timing.no_timing.error.yaml"
        ]
    );
}

#[test]
fn a_race_shows_in_the_results() {
    let text = "\
name: race
ops:
- {do: kernel, s: s1, r: [A], w: [B]}
- {do: kernel, s: s2, r: [B], w: [C]}
- {do: copy_async, s: s2, from: C, to: H}
- {do: sync_device}
- {do: host_read, buf: H}
";
    let program = program(text);
    let plan = Plan::of(&program).unwrap();
    let usual = ran(&plan, Schedule::InOrder);
    // The order of two unordered kernels depends on the seed.
    let seeded = (1..64).map(|seed| ran(&plan, Schedule::Seeded(seed)));
    let mut others = seeded.filter(|other| !differing(&usual, other).is_empty());
    let late = others
        .next()
        .expect("some seed lets the second kernel begin first");
    let shown: Vec<String> = differing(&usual, &late)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        shown,
        ["what op 4 reads", "`C` at the end", "`H` at the end"]
    );
}

#[test]
fn each_host_thread_of_the_program_is_one_of_the_trace() {
    let text = "\
name: threads
ops:
- {do: memset_async, s: s1, to: A}
- {do: sync_stream, st: s1}
- {do: memset_async, s: s2, to: B, t: worker}
- {do: sync_stream, st: s2, t: worker}
- {do: memset_async, s: s1, to: C, t: other}
";
    let program = program(text);
    let plan = Plan::of(&program).unwrap();
    for _ in 0..50 {
        let trace = ran(&plan, Schedule::InOrder).trace;
        let called = |call: &sidestream::trace::Call| {
            let mut threads = trace.threads.iter();
            let thread = threads.find(|thread| thread.id == call.thread).unwrap();
            (call.op.0, thread.name.clone())
        };
        let mut called: Vec<_> = trace.calls.iter().map(called).collect();
        // In the log, a call that blocks may come after the next call of another thread.
        called.sort();
        let callers = ["t0", "t0", "worker", "worker", "other"];
        let wanted = (0..).zip(callers.map(str::to_owned));
        assert_eq!(called, wanted.collect::<Vec<_>>());
    }
}
