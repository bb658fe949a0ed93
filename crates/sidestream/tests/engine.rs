//! What the engine guarantees besides times: order, holds, delays, causes, errors.

use sidestream::engine::{
    Call, Cause, Delay, Engine, Engines, Event, Grid, KernelCost, LaneId, Profile, Resource, Stuck,
    Task, TaskId, What, Work,
};

fn engine() -> Engine {
    Engine::new(vec![Profile::h200()])
}

fn timed(engine: Engines, ns: u64) -> Work {
    Work::Timed { engine, ns }
}

fn kernel(ns: u64, share: f64) -> Work {
    Work::Kernel(KernelCost::Duration { ns, share })
}

fn drain(engine: &mut Engine) -> Vec<Event> {
    std::iter::from_fn(|| engine.step()).collect()
}

/// A program that uses everything; `at` is called after every push.
fn everything(engine: &mut Engine, mut at: impl FnMut(&mut Engine)) {
    let host = engine.add_thread();
    let streams: Vec<LaneId> = (0..4).map(|n| engine.add_stream(0, -n)).collect();
    let grid = Grid::elementwise(300_000, 4, 50, 256, 2112);
    let mut last: Option<TaskId> = None;
    for i in 0..200 {
        let call = engine.push(Task::new(host, Work::Call(Call::Launch)));
        let work = match i % 7 {
            0 => Work::Upload { bytes: 10_000 * i },
            1 => Work::Kernel(KernelCost::Grid(grid)),
            2 => Work::Download { bytes: 50_000 },
            3 => Work::Marker,
            4 => Work::HostFunc { ns: 3000 },
            5 => Work::DeviceCopy { bytes: 1 << 20 },
            _ => kernel(5_000, 0.4),
        };
        let after = [call, last.unwrap_or(call)];
        let after = if i % 5 == 0 { &after[..] } else { &after[..1] };
        last = Some(engine.push(Task::new(streams[i as usize % 4], work).after(after)));
        at(engine);
    }
}

#[test]
fn the_same_program_gives_the_same_events() {
    let run = || {
        let mut e = engine();
        everything(&mut e, |_| ());
        drain(&mut e)
    };
    let events = run();
    assert_eq!(events, run());
    assert_eq!(events.len(), 2 * 400);
    assert!(
        events.windows(2).all(|w| w[0].time_ns <= w[1].time_ns),
        "events are in time order"
    );
    for n in 0..400 {
        let mine: Vec<What> = events
            .iter()
            .filter(|e| e.task == TaskId(n))
            .map(|e| e.what)
            .collect();
        assert_eq!(mine, [What::Started, What::Finished], "task {n}");
    }
}

/// A simulator that pushes late gets the same times, as long as it pushes before the engine passes the time.
#[test]
fn live_and_offline_agree() {
    let mut offline = engine();
    everything(&mut offline, |_| ());
    offline.finish().expect("nothing is held");
    let mut live = engine();
    everything(&mut live, |e| {
        // Up to the end of the second to last call: later calls cannot change earlier times.
        let call = TaskId(e.tasks() as u64 - 2);
        e.run_until(call).expect("nothing is held");
    });
    live.finish().expect("nothing is held");
    let spans = |e: &Engine| {
        e.schedule()
            .map(|(_, _, span)| (span.start_ns, span.end_ns))
            .collect::<Vec<_>>()
    };
    assert_eq!(spans(&offline), spans(&live));
}

#[test]
fn a_held_lane_stalls_and_reports_it() {
    let mut e = engine();
    let (a, b) = (e.add_stream(0, 0), e.add_stream(0, 0));
    let first = e.push(Task::new(a, timed(Engines::Upload, 1000)));
    let second = e.push(Task::new(a, Work::Marker));
    let other = e.push(Task::new(b, Work::Marker).after(&[second]));
    e.hold(a);
    // The first task became ready before the hold, but had not started.
    assert_eq!(
        e.run_until(other),
        Err(Stuck {
            task: other,
            held: vec![a]
        })
    );
    assert_eq!(e.step(), None);
    assert_eq!(e.scheduled(first), None);
    assert_eq!(e.critical_path(Some(other)), []);
    let message = e.run_until(other).expect_err("still held").to_string();
    assert!(message.contains("held lane 0"), "{message}");

    e.release(a);
    assert_eq!(e.run_until(first), Ok(1000));
    e.hold(a);
    e.hold(b);
    e.release(a);
    assert_eq!(
        e.finish(),
        Err(Stuck {
            task: other,
            held: vec![b]
        })
    );
    e.release(b);
    assert_eq!(e.finish().map(|_| ()), Ok(()));
}

#[test]
fn a_running_task_outlives_a_hold() {
    let mut e = engine();
    let a = e.add_stream(0, 0);
    let first = e.push(Task::new(a, timed(Engines::Upload, 1000)));
    assert_eq!(e.step().map(|e| e.what), Some(What::Started));
    e.hold(a);
    assert_eq!(e.run_until(first), Ok(1000));
}

/// Delayed tasks start when nothing else can, the highest rank first, and the tasks after them wait.
#[test]
fn until_idle() {
    let mut e = engine();
    let lanes: Vec<LaneId> = (0..4).map(|_| e.add_stream(0, 0)).collect();
    let low = e.push(Task::new(lanes[0], timed(Engines::Upload, 10)).delay(Delay::UntilIdle(1)));
    let behind = e.push(Task::new(lanes[0], Work::Marker));
    let high = e.push(Task::new(lanes[1], timed(Engines::Upload, 10)).delay(Delay::UntilIdle(7)));
    let equal = e.push(Task::new(lanes[2], timed(Engines::Upload, 10)).delay(Delay::UntilIdle(7)));
    let busy = e.push(Task::new(lanes[3], timed(Engines::Download, 5000)));
    let busier = e.push(Task::new(lanes[3], timed(Engines::Download, 5000)));

    // Time alone does not release them; a request for a result does, when nothing else can run.
    e.advance_to(20_000);
    assert!(e.is_finished(busier) && !e.is_finished(high));
    assert_eq!(e.next_event_ns(), None);
    let order: Vec<TaskId> = drain(&mut e)
        .into_iter()
        .filter(|e| e.what == What::Finished)
        .map(|e| e.task)
        .collect();
    assert_eq!(order, [high, equal, low, behind]);
    assert!(e.is_finished(busy));
    assert_eq!(e.scheduled(high).map(|s| s.start_ns), Some(20_000));
    assert_eq!(e.cause(high), Cause::Idle(busier));
}

#[test]
fn extra_delay_counts_from_ready() {
    let mut e = engine();
    let a = e.add_stream(0, 0);
    e.push(Task::new(a, timed(Engines::Upload, 1000)));
    let late = e.push(Task::new(a, timed(Engines::Upload, 10)).delay(Delay::ExtraNs(500)));
    assert_eq!(e.run_until(late), Ok(1510));
}

/// The path is contiguous from 0 to the end, and every cause ends where the next piece begins or before.
fn check_path(e: &Engine, task: Option<TaskId>) {
    let path = e.critical_path(task);
    let end = task.map_or_else(
        || e.schedule().map(|(_, _, s)| s.end_ns).max(),
        |t| e.scheduled(t).map(|s| s.end_ns),
    );
    assert_eq!(path.first().map(|l| l.from_ns), Some(0));
    assert_eq!(path.last().map(|l| l.to_ns), end);
    assert!(
        path.windows(2)
            .all(|w| w[0].to_ns == w[1].from_ns && w[1].cause.task() == Some(w[0].task)),
        "{path:?}"
    );
    let sum: u64 = path
        .iter()
        .map(|l| (l.start_ns - l.from_ns) + (l.to_ns.max(l.start_ns) - l.start_ns))
        .sum();
    assert_eq!(Some(sum), end, "{path:?}");
}

#[test]
fn the_critical_path_adds_up() {
    let mut e = engine();
    everything(&mut e, |_| ());
    e.finish().expect("nothing is held");
    check_path(&e, None);
    for n in 0..400 {
        check_path(&e, Some(TaskId(n)));
    }
}

/// Two long uploads on two streams share no edge: the second one waits for the engine, and the path says so.
#[test]
fn the_critical_path_goes_through_queues() {
    let mut e = engine();
    let (a, b) = (e.add_stream(0, 0), e.add_stream(0, 0));
    let first = e.push(Task::new(a, timed(Engines::Upload, 10_000)));
    let second = e.push(Task::new(b, timed(Engines::Upload, 10_000)));
    let last = e.push(Task::new(b, kernel(100, 1.0)));
    e.finish().expect("nothing is held");
    let causes: Vec<(TaskId, Cause)> = e
        .critical_path(None)
        .iter()
        .map(|l| (l.task, l.cause))
        .collect();
    assert_eq!(
        causes,
        [
            (first, Cause::Pushed),
            (second, Cause::Resource(first)),
            (last, Cause::Lane(second))
        ]
    );
    let hop = e.scheduled(last).expect("finished").start_ns - 20_000;
    assert_eq!(hop as f64, Profile::h200().engine_hop_ns);
}

#[test]
fn urgent_kernels_go_first_and_older_ones_before_younger() {
    let mut e = engine();
    let (low, same, high) = (e.add_stream(0, 0), e.add_stream(0, 0), e.add_stream(0, -5));
    let first = e.push(Task::new(low, kernel(100_000, 1.0)));
    let younger = e.push(Task::new(same, kernel(100_000, 1.0)));
    e.advance_to(50_000);
    let urgent = e.push(Task::new(high, kernel(20_000, 1.0)));
    e.finish().expect("nothing is held");
    let end = |t| e.scheduled(t).expect("finished").end_ns;
    assert_eq!(
        (end(urgent), end(first), end(younger)),
        (70_000, 120_000, 220_000)
    );
}

/// Two waves of blocks fill the device; an urgent kernel arrives in the middle of the first.
#[test]
fn an_urgent_kernel_waits_until_blocks_end_and_no_longer() {
    let blocks = |blocks, block_ns| {
        Work::Kernel(KernelCost::Blocks {
            blocks,
            threads_per_block: 1024,
            block_ns,
        })
    };
    let run = |priority, comes_ns| {
        let mut e = engine();
        let (low, high) = (e.add_stream(0, 0), e.add_stream(0, priority));
        let long = e.push(Task::new(low, blocks(2 * 264, 100_000)));
        let next = e.push(Task::new(low, blocks(264, 100_000)));
        e.advance_to(comes_ns);
        let urgent = e.push(Task::new(high, blocks(132, 10_000)));
        e.finish().expect("nothing is held");
        [urgent, long, next].map(|task| {
            let span = e.scheduled(task).expect("finished");
            (span.start_ns, span.end_ns)
        })
    };
    let gap_ns = Profile::h200().kernel_gap_ns as u64;
    // The urgent kernel takes half of the device for a tenth of a block: the rest is done a twentieth of a block later.
    let [urgent, long, next] = run(-1, 40_000);
    assert_eq!(urgent, (100_000, 110_000));
    assert_eq!(long, (0, 205_000));
    assert_eq!(next.0, 205_000 + gap_ns);
    // With equal priority the kernel waits for all work that is there when it arrives.
    let [equal, long, _] = run(0, 40_000);
    assert_eq!((equal, long), ((200_000, 210_000), (0, 200_000)));
    assert_eq!(run(-5, 99_999)[0].0, 100_000);
    // Blocks that begin at the moment when the urgent kernel arrives go first.
    assert_eq!(run(-1, 100_000)[0].0, 200_000);
}

#[test]
fn small_kernels_run_side_by_side() {
    let mut e = engine();
    let lanes: Vec<LaneId> = (0..4).map(|_| e.add_stream(0, 0)).collect();
    for lane in lanes {
        e.push(Task::new(lane, kernel(10_000, 0.25)));
    }
    assert_eq!(e.finish(), Ok(10_000));
}

/// Copies in two directions slow each other down; copies of two devices do not.
#[test]
fn the_bus_is_shared_by_directions_and_not_by_devices() {
    let mut e = Engine::new(vec![Profile::h200(), Profile::h200()]);
    let lanes = [e.add_stream(0, 0), e.add_stream(0, 0), e.add_stream(1, 0)];
    let bytes = 64 << 20;
    let up = e.push(Task::new(lanes[0], Work::Upload { bytes }));
    let down = e.push(Task::new(lanes[1], Work::Download { bytes }));
    let elsewhere = e.push(Task::new(lanes[2], Work::Upload { bytes }));
    e.finish().expect("nothing is held");
    let took = |t| {
        e.scheduled(t)
            .map(|s| s.end_ns - s.start_ns)
            .expect("finished") as f64
    };
    let alone = Profile::h200().upload_ns(bytes);
    assert!((took(elsewhere) - alone).abs() <= 1.0);
    assert!(took(up) > 1.05 * alone && took(down) > 1.05 * alone);
    assert_eq!(
        e.scheduled(down).map(|s| s.resource),
        Some(Resource::Engine {
            device: 0,
            engine: Engines::Download
        })
    );
}

#[test]
fn one_copy_engine_serves_both_directions() {
    let mut profile = Profile::h200();
    profile.copy_engines = 1.0;
    let mut e = Engine::new(vec![profile]);
    let lanes = [e.add_stream(0, 0), e.add_stream(0, 0)];
    let up = e.push(Task::new(lanes[0], Work::Upload { bytes: 1 << 20 }));
    let down = e.push(Task::new(lanes[1], Work::Download { bytes: 1 << 20 }));
    e.finish().expect("nothing is held");
    assert_eq!(
        e.scheduled(up).map(|s| s.end_ns),
        e.scheduled(down).map(|s| s.start_ns)
    );
}

/// Two events back and forth between devices: 5.2 to 7.1 µs a hop were measured.
#[test]
fn a_hop_between_devices() {
    let mut e = Engine::new(vec![Profile::h200(), Profile::h200()]);
    let lanes = [e.add_stream(0, 0), e.add_stream(1, 0)];
    let mut last: Option<TaskId> = None;
    for i in 0..100 {
        let lane = lanes[i % 2];
        if let Some(record) = last {
            e.push(Task::new(lane, Work::Marker).after(&[record]));
        }
        e.push(Task::new(lane, kernel(1, 1.0)));
        last = Some(e.push(Task::new(lane, Work::Marker)));
    }
    let hop_ns = e.finish().expect("nothing is held") / 100;
    assert!((5_200..=7_400).contains(&hop_ns), "{hop_ns}");
}

/// Empty kernels in one stream take 1.33 to 1.45 µs, with a pending wait elsewhere 2.6, in a graph 0.7.
#[test]
fn gaps_between_empty_kernels() {
    let gap = |pending: bool, graph: bool| {
        let mut e = engine();
        let (host, a, b, c) = (
            e.add_thread(),
            e.add_stream(0, 0),
            e.add_stream(0, 0),
            e.add_stream(0, 0),
        );
        let long = e.push(Task::new(b, timed(Engines::Download, 10_000_000)));
        if pending {
            e.push(Task::new(c, Work::Marker).after(&[long]));
        }
        let mut last = e.push(Task::new(host, Work::Call(Call::GraphLaunch)));
        for _ in 0..100 {
            let task = Task::new(
                a,
                Work::Kernel(KernelCost::Grid(Grid::elementwise(1, 4, 0, 32, 1))),
            );
            last = e.push(if graph { task.in_graph() } else { task });
        }
        e.run_until(last).expect("nothing is held") as f64 / 100.0
    };
    // A grid of one element still makes one trip to memory.
    let trip =
        Profile::h200().kernel_alone_ns(&KernelCost::Grid(Grid::elementwise(1, 4, 0, 32, 1)));
    for (pending, graph, low, high) in [
        (false, false, 1330.0, 1500.0),
        (true, false, 2500.0, 2700.0),
        (false, true, 690.0, 800.0),
    ] {
        let ns = gap(pending, graph) - trip;
        assert!(
            (low..high).contains(&ns),
            "pending {pending}, graph {graph}: {ns} ns"
        );
    }
}

/// A host function starts 9 to 14 µs after its call; between two kernels it makes a gap of 16 to 22 µs.
#[test]
fn hops_to_host_functions() {
    let mut e = engine();
    let (host, a) = (e.add_thread(), e.add_stream(0, 0));
    let call = e.push(Task::new(host, Work::Call(Call::HostFunc)));
    let lone = e.push(Task::new(a, Work::HostFunc { ns: 0 }).after(&[call]));
    let before = e.push(Task::new(a, kernel(1000, 1.0)));
    e.push(Task::new(a, Work::HostFunc { ns: 0 }));
    let behind = e.push(Task::new(a, kernel(1000, 1.0)));
    e.finish().expect("nothing is held");
    let span = |t| e.scheduled(t).expect("finished");
    let start = span(lone).start_ns;
    assert!((9_000..=14_000).contains(&start), "{start}");
    let gap = span(behind).start_ns - span(before).end_ns;
    assert!((16_000..=22_000).contains(&gap), "{gap}");
}

/// The round trip of a launch and a synchronise was measured at 8.0 to 10.2 µs.
#[test]
fn launch_and_synchronise() {
    let mut e = engine();
    let (host, a) = (e.add_thread(), e.add_stream(0, 0));
    let call = e.push(Task::new(host, Work::Call(Call::Launch)));
    let task = e.push(Task::new(a, kernel(1, 0.1)).after(&[call]));
    let sync = e.push(Task::new(host, Work::Call(Call::Sync)).after(&[task]));
    let ns = e.run_until(sync).expect("nothing is held");
    assert!((7_500..10_200).contains(&ns), "{ns}");
}

#[test]
fn absurd_amounts_do_not_overflow() {
    let mut e = engine();
    let (host, a) = (e.add_thread(), e.add_stream(0, 0));
    for _ in 0..3 {
        e.push(Task::new(host, Work::Call(Call::HostNs(u64::MAX))).delay(Delay::ExtraNs(u64::MAX)));
        e.push(Task::new(a, Work::Upload { bytes: u64::MAX }));
        e.push(Task::new(a, kernel(u64::MAX, f64::NAN)));
        let grid = Grid {
            blocks: u64::MAX,
            threads_per_block: u32::MAX,
            steps: u64::MAX,
            chain_steps: u64::MAX,
            bytes: u64::MAX,
            access_bytes: 0,
        };
        e.push(Task::new(a, Work::Kernel(KernelCost::Grid(grid))));
        let empty = Grid {
            blocks: 0,
            threads_per_block: 0,
            steps: 0,
            chain_steps: 0,
            bytes: 0,
            access_bytes: 0,
        };
        e.push(Task::new(a, Work::Kernel(KernelCost::Grid(empty))));
        e.push(Task::new(a, Work::HostFunc { ns: u64::MAX }));
    }
    assert!(e.finish().is_ok());
}

#[test]
#[should_panic(expected = "which does not exist yet")]
fn an_edge_to_the_future_is_a_mistake() {
    let mut e = engine();
    let a = e.add_stream(0, 0);
    e.push(Task::new(a, Work::Marker).after(&[TaskId(3)]));
}

#[test]
#[should_panic(expected = "is a stream")]
fn a_call_belongs_on_a_thread() {
    let mut e = engine();
    let a = e.add_stream(0, 0);
    e.push(Task::new(a, Work::Call(Call::Launch)));
}

const H200: &str = include_str!("../profiles/h200.toml");

#[test]
fn every_built_in_profile_has_a_source_for_every_value() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).expect("built in");
        assert!(profile.sources().count() > 40, "{name}");
        assert!(
            profile.sources().all(|(_, source)| source.len() > 5),
            "{name}"
        );
    }
    assert!(Profile::named("b200").is_none());
}

#[test]
fn a_wrong_profile_is_refused_by_field() {
    let line = |text: &str, with: &str| {
        assert_eq!(
            H200.lines().filter(|l| l.starts_with(text)).count(),
            1,
            "{text}"
        );
        H200.lines()
            .map(|l| if l.starts_with(text) { with } else { l })
            .collect::<Vec<_>>()
            .join("\n")
    };
    let cases: [(String, &str, &str); 16] = [
        ("no = [toml".into(), "", "TOML"),
        (line("gb_s", ""), "link.gb_s", "missing"),
        (
            line("gb_s", "gb_s = 55.4"),
            "link.gb_s",
            "value = 55.4, source",
        ),
        (
            line("gb_s", "gb_s = { value = 55.4 }"),
            "link.gb_s",
            "value = 55.4, source",
        ),
        (
            line("gb_s", "gb_s = { value = 55.4, source = ' ' }"),
            "link.gb_s",
            "source",
        ),
        (
            line(
                "gb_s",
                "gb_s = { value = 55.4, source = 'x', unit = 'GB/s' }",
            ),
            "link.gb_s",
            "unit",
        ),
        (
            line("gb_s", "gb_s = { value = -1, source = 'x' }"),
            "link.gb_s",
            "-1",
        ),
        (
            line("gb_s", "gb_s = { value = nan, source = 'x' }"),
            "link.gb_s",
            "NaN",
        ),
        (
            line("gb_s", "gb_s = { value = 0, source = 'x' }"),
            "link.gb_s",
            "from",
        ),
        (
            line("gb_s", "gb_s = { value = 1e9, source = 'x' }"),
            "link.gb_s",
            "unit",
        ),
        (
            line("gb_s", "gb_s = { value = '55', source = 'x' }"),
            "link.gb_s",
            "number",
        ),
        (
            line("sms", "sms = { value = 13.5, source = 'x' }"),
            "chip.sms",
            "whole",
        ),
        (
            format!("{H200}\nspeed = {{ value = 1, source = 'x' }}"),
            "calls.speed",
            "is not a key of [calls]; remove it",
        ),
        // The misspelling comes before what it leaves missing.
        (
            H200.replace("\ngb_s =", "\ngbs ="),
            "link.gbs",
            "is not a key of [link]; did you mean `gb_s`?",
        ),
        (
            H200.replace("[link]", "[links]"),
            "links",
            "is not a section or key of a device profile; did you mean `link`?",
        ),
        (line("name", ""), "name", "missing"),
    ];
    for (text, field, problem) in cases {
        let error = Profile::from_toml(&text).expect_err(field);
        assert_eq!(error.field, field, "{error}");
        assert!(error.problem.contains(problem), "{error}");
    }
}
