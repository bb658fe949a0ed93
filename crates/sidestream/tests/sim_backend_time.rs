//! The simulated machine as a back end: how long everything takes, and what is forgotten.

use std::time::Duration;

use crate::rig::*;
use sidestream::backend::{Address, Backend, Create, Destroy, Fill, Node, NodeWork};
use sidestream::error::Error;
use sidestream::op::{DeviceId, EventId, Kind, StreamId, StreamKind};
use sidestream::sim::Schedule;

#[test]
fn a_polling_loop_ends_under_every_schedule() {
    for schedule in schedules() {
        for peeks in [false, true] {
            let rig = Rig::new(schedule);
            let stream = rig.stream(0);
            let event = rig.event(0);
            for _ in 0..5 {
                rig.launch(stream, &code("long", 1_000_000_000, |_, _| ()), &[])
                    .unwrap();
            }
            rig.record(event, stream).unwrap();
            let ask = || {
                if peeks {
                    rig.peek(event).unwrap()
                } else {
                    rig.query(event).unwrap()
                }
            };
            let asked = (1..).find(|_| ask()).unwrap();
            assert!(asked > 1, "it cannot be complete at once");
            assert!(asked < 500, "asked {asked} times under {schedule}");
            // A successful query is a synchronisation.
            assert!(rig.machine.now_ns() >= 5_000_000_000);
        }
    }
}

#[test]
fn a_wait_for_a_while_gives_up_in_virtual_time() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    rig.launch(stream, &code("long", 1_000_000_000, |_, _| ()), &[])
        .unwrap();
    let wait = |most| {
        let op = rig.op(Kind::SyncStream { stream });
        rig.machine.wait(&op, most).unwrap()
    };
    assert!(!wait(Duration::from_millis(400)));
    assert!(!wait(Duration::from_millis(400)));
    assert!(wait(Duration::from_millis(400)));
    assert!((1_000_000_000..1_001_000_000).contains(&rig.machine.now_ns()));
}

#[test]
fn waits_for_a_while_end_under_every_schedule() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let at = rig.device_memory(4);
        for n in 0..5 {
            rig.fill(stream, at, n, 1).unwrap();
        }
        let wait = || {
            let op = rig.op(Kind::SyncStream { stream });
            rig.machine.wait(&op, Duration::from_nanos(1)).unwrap()
        };
        let asked = (1..).find(|_| wait()).unwrap();
        assert!(asked < 500, "asked {asked} times under {schedule}");
    }
}

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let event = rig.event(0);
        assert!(rig.query(event).unwrap());
        assert!(rig.peek(event).unwrap());
    }
}

// ------------------------------------------------------------------ elapsed time

#[test]
fn two_timed_events_measure_the_work_between_them() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let (from, to) = (rig.event_on(0, 0, true), rig.event_on(1, 0, true));
    rig.record(from, stream).unwrap();
    rig.launch(stream, &code("second", 1_000_000_000, |_, _| ()), &[])
        .unwrap();
    rig.record(to, stream).unwrap();
    code_of(rig.machine.elapsed_ns(from, to), 600);
    rig.synchronize(stream).unwrap();
    let ns = rig.machine.elapsed_ns(from, to).unwrap();
    assert!((1.0e9..1.0001e9).contains(&ns), "{ns}");
    // The event is recorded again, so it is not complete.
    rig.record(to, stream).unwrap();
    code_of(rig.machine.elapsed_ns(from, to), 600);
}

#[test]
fn events_without_times_or_records_have_no_elapsed_time() {
    let rig = Rig::with_devices(Schedule::InOrder, 2);
    let (near, far) = (rig.stream(0), rig.stream_on(1, 1, StreamKind::NonBlocking));
    let timed = rig.event_on(0, 0, true);
    let plain = rig.event(1);
    let elsewhere = rig.event_on(2, 1, true);
    code_of(rig.machine.elapsed_ns(timed, timed), 400);
    rig.record(timed, near).unwrap();
    rig.record(plain, near).unwrap();
    rig.record(elsewhere, far).unwrap();
    rig.synchronize(near).unwrap();
    rig.synchronize(far).unwrap();
    code_of(rig.machine.elapsed_ns(timed, plain), 400);
    code_of(rig.machine.elapsed_ns(timed, elsewhere), 400);
    assert_eq!(rig.machine.elapsed_ns(timed, timed), Ok(0.0));
}

fn code_of(result: Result<f64, Error>, want: i32) {
    match result {
        Err(Error::Refused { code, .. }) => assert_eq!(code, want),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_times_of_operations_are_kept_on_demand() {
    let rig = Rig::new(Schedule::InOrder);
    let stream = rig.stream(0);
    let second = code("second", 1_000_000_000, |_, _| ());
    let mut done = Vec::new();
    rig.launch(stream, &second, &[]).unwrap();
    rig.machine.keep_times(true);
    rig.launch(stream, &second, &[]).unwrap();
    let event = rig.event(0);
    rig.record(event, stream).unwrap();
    rig.machine.take_times(&mut done);
    assert!(done.is_empty(), "nothing is complete yet");
    rig.synchronize(stream).unwrap();
    rig.machine.take_times(&mut done);
    let kernel = done.iter().find(|done| done.op.0 == 1).unwrap();
    let (call_start, call_end) = kernel.call_ns.unwrap();
    let (start, end) = kernel.work_ns.unwrap();
    assert!(call_start < call_end && call_end < start);
    assert_eq!(end - start, 1_000_000_000);
    assert!(done.iter().any(|done| done.op.0 == 2), "the record too");
    // The synchronize call returned after the work was complete, and is itself no work of the device.
    let sync = done.iter().find(|done| done.op.0 == 3).unwrap();
    assert!(sync.call_ns.unwrap().1 > end && sync.work_ns.is_none());
    assert!(done.iter().all(|done| done.op.0 != 0), "it was too early");
    done.clear();
    rig.machine.take_times(&mut done);
    assert!(done.is_empty(), "they are returned once");
}

// ------------------------------------------------------------------ graphs

const MEGABYTES: u64 = 8 << 20;
const SMALL: u64 = 1 << 12;

/// Uploads, adds and downloads: three engines.
fn pipeline(rig: &Rig, bytes: u64) -> (Vec<Node>, Address) {
    let input = rig.pinned(&vec![1; bytes as usize]);
    let output = rig.pinned(&vec![0; bytes as usize]);
    let (a, b) = (rig.device_memory(bytes), rig.device_memory(bytes));
    let nodes = vec![
        node(NodeWork::Copy(plain(input, a, bytes)), &[]),
        node(
            NodeWork::Fill(Fill {
                at: b,
                value: 0x0101_0101,
                width: 4,
                count: bytes / 4,
            }),
            &[],
        ),
        node(
            NodeWork::Launch {
                code: add(150_000),
                grid: ONE_BLOCK,
                args: vec![reads(a, bytes), writes(b, bytes)],
            },
            &[0, 1],
        ),
        node(NodeWork::Copy(plain(b, output, bytes)), &[2]),
    ];
    (nodes, output)
}

#[test]
fn the_nodes_of_a_graph_run_in_the_order_of_its_edges() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let (before, after) = (rig.stream(0), rig.stream(1));
        let event = rig.event(0);
        let (nodes, output) = pipeline(&rig, SMALL);
        let NodeWork::Copy(upload) = nodes[0].work else {
            panic!("the first node uploads");
        };
        let graph = rig.graph(0, &nodes);
        for add in [1, 2] {
            // Earlier work of the stream is visible, and later work comes later.
            let input = upload.from;
            rig.host_func(before, move || {
                // SAFETY: the stream holds the graph, and was ordered after its last launch.
                unsafe { pointer(input).write_bytes((10 * add) as u8, SMALL as usize) };
            })
            .unwrap();
            rig.launch_graph(before, graph).unwrap();
            rig.record(event, before).unwrap();
            rig.wait_event(after, event).unwrap();
            let seen = rig.fetch(after, upload.to, 8);
            assert_eq!(seen, [(10 * add) as u8; 8]);
            let got = rig.look(output, SMALL as usize);
            assert!(got.iter().all(|&byte| byte == (10 * add) as u8 + 1));
        }
    }
}

#[test]
fn two_graphs_in_two_streams_overlap() {
    let run = |graphs: u32| {
        let rig = Rig::new(Schedule::InOrder);
        for n in 0..graphs {
            rig.stream(n);
            let (nodes, _) = pipeline(&rig, MEGABYTES);
            rig.graph(n, &nodes);
        }
        for _ in 0..4 {
            for n in 0..graphs {
                rig.launch_graph(StreamId(n), sidestream::op::GraphId(n))
                    .unwrap();
            }
        }
        for n in 0..graphs {
            rig.synchronize(StreamId(n)).unwrap();
        }
        rig.machine.now_ns() as f64
    };
    let (one, two) = (run(1), run(2));
    // One launch takes upload + kernel + download, some 150 us each; two share the engines.
    assert!(two < 1.4 * one, "two take {two} ns, one takes {one} ns");
    assert!(two > one);
}

#[test]
fn branches_of_a_graph_overlap_inside_it() {
    let run = |after: &[u32]| {
        let rig = Rig::new(Schedule::InOrder);
        let stream = rig.stream(0);
        let input = rig.pinned(&vec![1; MEGABYTES as usize]);
        let output = rig.pinned(&vec![0; MEGABYTES as usize]);
        let (a, b) = (rig.device_memory(MEGABYTES), rig.device_memory(MEGABYTES));
        let nodes = [
            node(NodeWork::Copy(plain(input, a, MEGABYTES)), &[]),
            node(NodeWork::Copy(plain(b, output, MEGABYTES)), after),
        ];
        let graph = rig.graph(0, &nodes);
        rig.launch_graph(stream, graph).unwrap();
        rig.synchronize(stream).unwrap();
        rig.machine.now_ns() as f64
    };
    let (apart, chained) = (run(&[]), run(&[0]));
    assert!(apart < 0.65 * chained, "{apart} ns and {chained} ns");
}

#[test]
fn a_graph_without_nodes_is_a_point_in_its_stream() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let stream = rig.stream(0);
        let at = rig.device_memory(4);
        let graph = rig.graph(0, &[]);
        rig.fill(stream, at, 7, 1).unwrap();
        rig.launch_graph(stream, graph).unwrap();
        assert_eq!(rig.fetch(stream, at, 4), 7u32.to_le_bytes());
    }
}

// ------------------------------------------------------------------ flat memory

#[test]
fn a_machine_remembers_only_pending_work() {
    for schedule in [
        Schedule::InOrder,
        Schedule::Adversarial,
        Schedule::Seeded(1),
    ] {
        println!("schedule {schedule}");
        let rig = Rig::new(schedule);
        let streams = [rig.stream(0), rig.stream(1)];
        let event = rig.event(0);
        let (at, host) = (rig.device_memory(64), rig.pinned(&[0; 64]));
        let mut most = 0;
        for round in 0..20_000u64 {
            let [first, second] = streams;
            // Sizes differ from round to round: their costs must not accumulate either.
            rig.upload(first, host, at, 1 + round % 61).unwrap();
            rig.launch(first, &code("any", 1 + round, |_, _| ()), &[])
                .unwrap();
            rig.record(event, first).unwrap();
            rig.wait_event(second, event).unwrap();
            rig.fill(second, at, 0, 1 + round % 13).unwrap();
            let _ = rig.peek(event).unwrap();
            if round % 8 == 0 {
                rig.synchronize(second).unwrap();
            }
            most = most.max(rig.machine.live_tasks());
        }
        assert!(most < 5_000, "{most} tasks");
    }
}

#[test]
fn work_that_is_delayed_forever_is_released_after_a_while() {
    let rig = Rig::new(Schedule::Adversarial);
    let (forgotten, busy) = (rig.stream(0), rig.stream(1));
    let at = rig.device_memory(64);
    rig.fill(forgotten, at, 1, 1).unwrap();
    let mut most = 0;
    for n in 0..60_000 {
        rig.fill(busy, at.offset(32), n, 1).unwrap();
        rig.synchronize(busy).unwrap();
        most = most.max(rig.machine.live_tasks());
    }
    assert!(most < 200_000, "{most} tasks");
    assert!(rig.machine.live_tasks() < most);
}

#[test]
fn ids_of_destroyed_objects_may_be_reused() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let keep = rig.stream(0);
        let at = rig.device_memory(4 * 50);
        for round in 0..50u32 {
            let stream = rig.stream(1);
            let event = rig.event(0);
            let graph = rig.graph(0, &[]);
            assert!(rig.query(event).unwrap(), "a new event has no record");
            rig.fill(stream, at.offset(u64::from(4 * round)), round, 1)
                .unwrap();
            rig.launch_graph(stream, graph).unwrap();
            rig.record(event, stream).unwrap();
            rig.wait_event(keep, event).unwrap();
            // Work continues, and so do waits that were placed (R12, R13).
            rig.destroy(Destroy::Event(event));
            rig.destroy(Destroy::Stream(stream));
            rig.destroy(Destroy::Graph(graph));
            if round % 3 == 0 {
                let so_far = rig.fetch(keep, at, 4 * round as usize + 4);
                let want: Vec<u8> = (0..=round).flat_map(u32::to_le_bytes).collect();
                assert_eq!(so_far, want);
            }
        }
        match rig.query(EventId(0)) {
            Err(Error::Refused { code: 400, .. }) => {}
            other => panic!("{other:?}"),
        }
        let what = Create::Event {
            id: EventId(0),
            device: DeviceId(0),
            timing: false,
            sleeps: false,
        };
        rig.create(what);
        assert!(rig.query(EventId(0)).unwrap());
    }
}

// ------------------------------------------------------------------ capture

#[test]
fn captured_work_runs_when_its_graph_is_launched() {
    for schedule in schedules() {
        let rig = Rig::new(schedule);
        let (first, second) = (rig.stream(0), rig.stream(1));
        let (fork, join) = (rig.event(0), rig.event(1));
        let (a, b) = (rig.device_memory(64), rig.device_memory(64));
        let (input, output) = (rig.pinned(&[5; 64]), rig.pinned(&[0; 64]));
        capture(&rig, Kind::BeginCapture { stream: first }).unwrap();
        rig.record(fork, first).unwrap();
        rig.wait_event(second, fork).unwrap();
        rig.upload(first, input, a, 64).unwrap();
        rig.fill(second, b, 0x0101_0101, 16).unwrap();
        rig.record(join, second).unwrap();
        rig.wait_event(first, join).unwrap();
        rig.launch(first, &add(1000), &[reads(a, 64), writes(b, 64)])
            .unwrap();
        rig.download(first, b, output, 64).unwrap();
        capture(&rig, Kind::EndCapture { stream: first }).unwrap();
        rig.synchronize(first).unwrap();
        rig.synchronize(second).unwrap();
        assert_eq!(rig.look(output, 64), [0; 64], "a capture does not run");

        let graph = rig.graph(0, &[]);
        for value in [5, 9] {
            // SAFETY: the stream was waited for.
            unsafe { pointer(input).write_bytes(value, 64) };
            rig.launch_graph(first, graph).unwrap();
            rig.synchronize(first).unwrap();
            assert_eq!(rig.look(output, 64), [value + 1; 64]);
        }
    }
}

#[test]
fn a_capture_refuses_calls_that_cannot_be_captured() {
    let rig = Rig::new(Schedule::InOrder);
    let (first, second) = (rig.stream(0), rig.stream(1));
    let event = rig.event(0);
    let at = rig.device_memory(4);
    capture(&rig, Kind::BeginCapture { stream: first }).unwrap();
    code_of(rig.host_func(first, || ()).map(|()| 0.0), 801);
    code_of(rig.synchronize(first).map(|_| 0.0), 900);
    rig.record(event, first).unwrap();
    code_of(rig.query(event).map(|_| 0.0), 907);
    rig.wait_event(second, event).unwrap();
    rig.fill(second, at, 1, 1).unwrap();
    let unjoined = capture(&rig, Kind::EndCapture { stream: first });
    code_of(unjoined.map(|()| 0.0), 904);
}

fn capture(rig: &Rig, kind: Kind) -> Result<(), Error> {
    rig.submit(kind, sidestream::backend::Payload::None)
}
