//! Captures of the explicit style: the graphs that they produce, and the codes of refused calls.

use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{self, DeviceMemory, Event, Graph, Stream};

use crate::kernels::{HOLD_NS, fill_explicit, is_seen_in_time, patterned, spin};
use crate::target::{Scenario, Target, one};
use crate::untracked::{BYTES, LEN, expect_device, filled, pageable, pinned, stream};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(captured_calls_do_not_run_and_their_graph_does),
        one(a_fork_that_is_joined_becomes_part_of_the_graph),
        one(branches_of_a_capture_run_side_by_side),
        one(launches_of_a_captured_graph_follow_one_another),
        one(a_graph_that_is_dropped_while_it_runs_completes),
        one(a_capture_may_be_empty),
        one(a_second_capture_of_a_stream_is_a_graph_of_its_own),
        one(non_blocking_captures_leave_the_legacy_stream_usable),
        one(a_per_thread_stream_can_be_captured),
        one(the_legacy_stream_cannot_be_captured),
        one(a_stream_that_is_captured_cannot_be_queried),
        one(an_event_of_a_running_capture_cannot_be_queried),
        one(an_event_of_an_ended_capture_is_refused_elsewhere),
        one(a_blocking_capture_forbids_the_legacy_stream),
        one(a_capture_cannot_wait_for_work_outside),
        one(a_fork_with_work_must_be_joined),
        one(two_captures_cannot_be_merged),
        one(a_capture_ends_in_the_stream_and_thread_that_began_it),
        one(a_capture_begins_once),
        one(a_stream_whose_capture_has_failed_is_a_stream_like_any_other),
    ]
}

// In these scenarios the memory is not freed until the device was waited for, and the order is that of the captured
// graph.

#[track_caller]
fn expect_code<T>(result: Result<T>, code: i32) {
    match result {
        Err(Error::Refused {
            code: found, why, ..
        }) => assert_eq!(found, code, "{why}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused with {code}"),
    }
}

fn copy(stream: &Stream, from: &DeviceMemory, to: &DeviceMemory) {
    // SAFETY: see above.
    unsafe { stream.memcpy(from.all(), to.all()) }.unwrap();
}

fn write(stream: &Stream, to: &DeviceMemory, seed: u32) {
    // SAFETY: see above.
    unsafe { fill_explicit(stream, to.all(), seed) };
}

fn launch(stream: &Stream, graph: &Graph) {
    // SAFETY: see above.
    unsafe { stream.launch_graph(graph) }.unwrap();
}

/// Returns a device, one of its streams, and memory with the first pattern.
fn open(target: Target) -> (Device, Stream, DeviceMemory) {
    let device = target.open();
    let (s, x) = (stream(&device, "s"), filled(&device, 1));
    (device, s, x)
}

fn captured_calls_do_not_run_and_their_graph_does(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let [x, y] = [1, 2].map(|seed| filled(&device, seed));
    let (from, to) = (pinned(&device, 3), pinned(&device, 4));
    s.begin_capture().unwrap();
    // SAFETY: see above.
    unsafe {
        s.memcpy(from.all(), x.all()).unwrap();
        copy(&s, &x, &y);
        s.memset(x.bytes(..4), 0).unwrap();
        s.memcpy(y.all(), to.all()).unwrap();
        write(&s, &y, 9);
    }
    let graph = s.end_capture().unwrap();
    expect_device(&device, &x, 1);
    expect_device(&device, &y, 2);
    for seed in [3, 5, 6] {
        from.write(0, &patterned(LEN, seed));
        launch(&s, &graph);
        s.synchronize().unwrap();
        crate::untracked::expect_host(&to, seed);
        expect_device(&device, &y, 9);
    }
}

fn a_fork_that_is_joined_becomes_part_of_the_graph(target: Target) {
    let device = target.open();
    let [s, side] = ["s", "side"].map(|name| stream(&device, name));
    let [x, y, z] = [1, 2, 3].map(|seed| filled(&device, seed));
    let [fork, join] = [(); 2].map(|()| Event::new(&device).unwrap());
    s.begin_capture().unwrap();
    spin(HOLD_NS).hold_explicit(&s);
    write(&s, &x, 4);
    s.record(&fork).unwrap();
    side.wait(&fork).unwrap();
    copy(&side, &x, &y);
    spin(HOLD_NS).hold_explicit(&side);
    write(&side, &z, 5);
    side.record(&join).unwrap();
    s.wait(&join).unwrap();
    copy(&s, &z, &x);
    let graph = s.end_capture().unwrap();
    for _ in 0..3 {
        launch(&s, &graph);
        expect_device(&device, &x, 5);
        expect_device(&device, &y, 4);
        write(&side, &z, 1);
        side.synchronize().unwrap();
    }
}

fn branches_of_a_capture_run_side_by_side(target: Target) {
    let device = target.open();
    let streams = ["a", "b", "c", "d"].map(|name| stream(&device, name));
    let first = &streams[0];
    let hold = spin(HOLD_NS);
    first.begin_capture().unwrap();
    for side in &streams[1..] {
        side.wait_stream(first).unwrap();
    }
    streams.iter().for_each(|stream| hold.hold_explicit(stream));
    for side in &streams[1..] {
        first.wait_stream(side).unwrap();
    }
    let graph = first.end_capture().unwrap();
    launch(first, &graph);
    let [start, end] = [(); 2].map(|()| Event::timed(&device).unwrap());
    first.record(&start).unwrap();
    launch(first, &graph);
    first.record(&end).unwrap();
    first.synchronize().unwrap();
    let took = end.elapsed_ns_since(&start).unwrap();
    let one = HOLD_NS as f64;
    assert!(
        (0.95 * one..3.0 * one).contains(&took),
        "{took} ns for four"
    );
}

fn launches_of_a_captured_graph_follow_one_another(target: Target) {
    let device = target.open();
    let [a, b] = ["a", "b"].map(|name| stream(&device, name));
    let [x, y] = [1, 2].map(|seed| filled(&device, seed));
    a.begin_capture().unwrap();
    spin(HOLD_NS).hold_explicit(&a);
    copy(&a, &x, &y);
    let graph = a.end_capture().unwrap();
    let (start, end) = (
        Event::timed(&device).unwrap(),
        Event::timed(&device).unwrap(),
    );
    launch(&a, &graph);
    a.synchronize().unwrap();
    a.record(&start).unwrap();
    b.wait(&start).unwrap();
    for at in 0..4 {
        launch(if at % 2 == 0 { &a } else { &b }, &graph);
    }
    a.wait_stream(&b).unwrap();
    a.record(&end).unwrap();
    a.synchronize().unwrap();
    let took = end.elapsed_ns_since(&start).unwrap();
    assert!(took >= 3.8 * HOLD_NS as f64, "{took} ns for four in a row");
    expect_device(&device, &y, 1);
}

fn a_graph_that_is_dropped_while_it_runs_completes(target: Target) {
    let (device, s, x) = open(target);
    s.begin_capture().unwrap();
    spin(HOLD_NS).hold_explicit(&s);
    write(&s, &x, 2);
    let graph = s.end_capture().unwrap();
    launch(&s, &graph);
    drop(graph);
    expect_device(&device, &x, 2);
}

fn a_capture_may_be_empty(target: Target) {
    let (device, s, x) = open(target);
    s.begin_capture().unwrap();
    let graph = s.end_capture().unwrap();
    launch(&s, &graph);
    write(&s, &x, 2);
    launch(&s, &graph);
    expect_device(&device, &x, 2);
}

fn a_second_capture_of_a_stream_is_a_graph_of_its_own(target: Target) {
    let (device, s, x) = open(target);
    let graphs = [2, 3].map(|seed| {
        s.begin_capture().unwrap();
        write(&s, &x, seed);
        s.end_capture().unwrap()
    });
    for (graph, seed) in graphs.iter().zip([2, 3]) {
        launch(&s, graph);
        expect_device(&device, &x, seed);
    }
}

fn non_blocking_captures_leave_the_legacy_stream_usable(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let legacy = Stream::legacy(&device).unwrap();
    let [x, y] = [1, 2].map(|seed| filled(&device, seed));
    let event = Event::new(&device).unwrap();
    s.begin_capture().unwrap();
    write(&s, &x, 3);
    write(&legacy, &y, 4);
    legacy.record(&event).unwrap();
    let graph = s.end_capture().unwrap();
    expect_device(&device, &x, 1);
    expect_device(&device, &y, 4);
    launch(&s, &graph);
    expect_device(&device, &x, 3);
}

fn a_per_thread_stream_can_be_captured(target: Target) {
    let device = target.open();
    let mine = Stream::per_thread(&device).unwrap();
    let x = filled(&device, 1);
    mine.begin_capture().unwrap();
    write(&mine, &x, 2);
    let graph = mine.end_capture().unwrap();
    launch(&stream(&device, "s"), &graph);
    expect_device(&device, &x, 2);
}

fn the_legacy_stream_cannot_be_captured(target: Target) {
    let device = target.open();
    let legacy = Stream::legacy(&device).unwrap();
    expect_code(legacy.begin_capture(), 900);
    let x = filled(&device, 1);
    write(&legacy, &x, 2);
    expect_device(&device, &x, 2);
}

/// A refused call may or may not invalidate the capture, so each case opens a machine of its own. The device must be usable
/// afterwards.
fn each_refused<const N: usize>(target: Target, cases: [&dyn Fn(&Device); N]) {
    for case in cases {
        let device = target.open();
        case(&device);
        drop(device);
        let device = target.open();
        let x = filled(&device, 1);
        expect_device(&device, &x, 1);
    }
}

fn a_stream_that_is_captured_cannot_be_queried(target: Target) {
    each_refused(
        target,
        [
            &|device| {
                let s = stream(device, "s");
                s.begin_capture().unwrap();
                expect_code(s.query(), 900);
                let _ = s.end_capture();
            },
            &|device| {
                let s = stream(device, "s");
                s.begin_capture().unwrap();
                expect_code(s.synchronize(), 900);
                let _ = s.end_capture();
            },
            &|device| {
                let s = stream(device, "s");
                s.begin_capture().unwrap();
                expect_code(explicit::synchronize(device), 900);
                let _ = s.end_capture();
            },
        ],
    );
}

fn an_event_of_a_running_capture_cannot_be_queried(target: Target) {
    let ask = |ask: fn(&Event) -> Result<()>| {
        move |device: &Device| {
            let s = stream(device, "s");
            let event = Event::new(device).unwrap();
            s.begin_capture().unwrap();
            s.record(&event).unwrap();
            expect_code(ask(&event), 907);
            let _ = s.end_capture();
        }
    };
    let queries = ask(|event| event.query().map(|_| ()));
    each_refused(target, [&queries, &ask(Event::synchronize)]);
}

fn an_event_of_an_ended_capture_is_refused_elsewhere(target: Target) {
    let device = target.open();
    let s = stream(&device, "s");
    let event = Event::new(&device).unwrap();
    s.begin_capture().unwrap();
    s.record(&event).unwrap();
    drop(s.end_capture().unwrap());
    expect_code(s.wait(&event), 1);
    expect_code(event.query(), 1);
    expect_code(event.synchronize(), 1);
    // Once the event is recorded again, it is like any other.
    s.record(&event).unwrap();
    event.synchronize().unwrap();
    s.wait(&event).unwrap();
    let x = filled(&device, 1);
    write(&s, &x, 2);
    expect_device(&device, &x, 2);
}

fn a_blocking_capture_forbids_the_legacy_stream(target: Target) {
    /// A call in the legacy stream, with an event that was recorded before.
    type Act = fn(&Stream, &DeviceMemory, &Event) -> Result<()>;
    let acts: [Act; 7] = [
        // SAFETY: the call is refused.
        |legacy, memory, _| unsafe { legacy.memset(memory.all(), 1) },
        // SAFETY: the call is refused.
        |legacy, memory, _| unsafe { legacy.memcpy(memory.bytes(..8), memory.bytes(8..16)) },
        |legacy, _, event| legacy.record(event),
        |legacy, _, event| legacy.wait(event),
        |legacy, _, _| legacy.query().map(|_| ()),
        |legacy, _, _| legacy.synchronize(),
        // SAFETY: the call is refused.
        |_, memory, _| unsafe { explicit::memset_blocking(memory.all(), 1) },
    ];
    for act in acts {
        let refused = |device: &Device| {
            let captured = Stream::blocking(device, "s").unwrap();
            let legacy = Stream::legacy(device).unwrap();
            let memory = filled(device, 1);
            let event = Event::new(device).unwrap();
            stream(device, "o").record(&event).unwrap();
            event.synchronize().unwrap();
            captured.begin_capture().unwrap();
            expect_code(act(&legacy, &memory, &event), 906);
            let _ = captured.end_capture();
        };
        each_refused(target, [&refused]);
    }
    let copies = |device: &Device| {
        let captured = Stream::blocking(device, "s").unwrap();
        let (memory, host) = (filled(device, 1), pageable(device, BYTES, 2));
        captured.begin_capture().unwrap();
        // SAFETY: see above; the call is refused.
        expect_code(
            unsafe { explicit::memcpy_blocking(host.all(), memory.all()) },
            906,
        );
        let _ = captured.end_capture();
    };
    each_refused(target, [&copies]);
}

fn a_capture_cannot_wait_for_work_outside(target: Target) {
    let refused = |device: &Device| {
        let [s, outside] = ["s", "o"].map(|name| stream(device, name));
        let event = Event::new(device).unwrap();
        outside.record(&event).unwrap();
        s.begin_capture().unwrap();
        expect_code(s.wait(&event), 905);
        let _ = s.end_capture();
    };
    // A wait for an event that was never recorded has no effect.
    let allowed = |device: &Device| {
        let s = stream(device, "s");
        let (event, x) = (Event::new(device).unwrap(), filled(device, 1));
        s.begin_capture().unwrap();
        s.wait(&event).unwrap();
        write(&s, &x, 2);
        let graph = s.end_capture().unwrap();
        launch(&s, &graph);
        expect_device(device, &x, 2);
    };
    each_refused(target, [&refused, &allowed]);
}

fn a_fork_with_work_must_be_joined(target: Target) {
    let unjoined = |device: &Device| {
        let [s, side] = ["s", "side"].map(|name| stream(device, name));
        let x = filled(device, 1);
        s.begin_capture().unwrap();
        side.wait_stream(&s).unwrap();
        write(&side, &x, 2);
        expect_code(s.end_capture(), 904);
        device_is_untouched(device, &x);
    };
    let without_work = |device: &Device| {
        let [s, side] = ["s", "side"].map(|name| stream(device, name));
        let x = filled(device, 1);
        s.begin_capture().unwrap();
        side.wait_stream(&s).unwrap();
        write(&s, &x, 2);
        let graph = s.end_capture().unwrap();
        launch(&s, &graph);
        expect_device(device, &x, 2);
    };
    each_refused(target, [&unjoined, &without_work]);
}

/// Checks that captured work has not run. The device cannot be waited for while a capture is open, so this uses a
/// stream.
fn device_is_untouched(device: &Device, memory: &DeviceMemory) {
    let (other, host) = (stream(device, "o"), pinned(device, 9));
    // SAFETY: see above.
    unsafe { other.memcpy(memory.all(), host.all()) }.unwrap();
    other.synchronize().unwrap();
    crate::untracked::expect_host(&host, 1);
}

fn two_captures_cannot_be_merged(target: Target) {
    let merged = |device: &Device| {
        let [a, b] = ["a", "b"].map(|name| stream(device, name));
        let event = Event::new(device).unwrap();
        a.begin_capture().unwrap();
        b.begin_capture().unwrap();
        a.record(&event).unwrap();
        expect_code(b.wait(&event), 902);
        let _ = (a.end_capture(), b.end_capture());
    };
    each_refused(target, [&merged]);
}

fn a_capture_ends_in_the_stream_and_thread_that_began_it(target: Target) {
    let on_the_fork = |device: &Device| {
        let [s, side] = ["s", "side"].map(|name| stream(device, name));
        s.begin_capture().unwrap();
        side.wait_stream(&s).unwrap();
        expect_code(side.end_capture(), 903);
        let _ = s.end_capture();
    };
    let by_another_thread = |device: &Device| {
        let s = stream(device, "s");
        s.begin_capture().unwrap();
        let other = std::thread::scope(|scope| scope.spawn(|| s.end_capture()).join());
        expect_code(other.unwrap(), 908);
        let _ = s.end_capture();
    };
    let without_a_begin = |device: &Device| {
        let s = stream(device, "s");
        expect_code(s.end_capture(), 401);
        let x = filled(device, 1);
        write(&s, &x, 2);
        expect_device(device, &x, 2);
    };
    each_refused(target, [&on_the_fork, &by_another_thread, &without_a_begin]);
}

fn a_capture_begins_once(target: Target) {
    let (device, s, x) = open(target);
    s.begin_capture().unwrap();
    write(&s, &x, 2);
    expect_code(s.begin_capture(), 401);
    // The first capture continues.
    let graph = s.end_capture().unwrap();
    expect_device(&device, &x, 1);
    launch(&s, &graph);
    expect_device(&device, &x, 2);
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&s);
        launch(&s, &graph);
        let was_held = !s.query().unwrap();
        s.synchronize().unwrap();
        was_held
    });
    assert!(seen, "a launch is not ordered after the work of its stream");
}

/// Drivers end a capture even where ending it is refused; the simulated GPU continues the capture, as after every
/// refused call, and it can then be ended normally.
fn a_stream_whose_capture_has_failed_is_a_stream_like_any_other(target: Target) {
    let continues = target == Target::Sim;
    let check_usable = |device: &Device, s: &Stream| {
        let safe = device.stream("safe").unwrap();
        let (x, event) = (filled(device, 1), Event::new(device).unwrap());
        let buffer = safe.alloc_zeroed::<u32>(LEN).unwrap();
        let zeroed = safe.record_event().unwrap();
        // In a capture the stream may neither use memory of the safe API nor wait for its events.
        s.wait_event(&zeroed).unwrap();
        // SAFETY: the stream waits for the writers of the memory, and the host for the stream.
        unsafe {
            let lent = s.lend(buffer.view()).unwrap();
            s.memcpy(lent, x.all()).unwrap();
        }
        s.record(&event).unwrap();
        event.synchronize().unwrap();
        s.synchronize().unwrap();
        assert!(s.query().unwrap());
        write(s, &x, 2);
        expect_device(device, &x, 2);
        s.begin_capture().unwrap();
        write(s, &x, 3);
        let graph = s.end_capture().unwrap();
        expect_device(device, &x, 2);
        launch(s, &graph);
        expect_device(device, &x, 3);
    };
    let unjoined = |device: &Device| {
        let [s, side] = ["s", "side"].map(|name| stream(device, name));
        let x = filled(device, 1);
        s.begin_capture().unwrap();
        side.wait_stream(&s).unwrap();
        write(&side, &x, 2);
        expect_code(s.end_capture(), 904);
        if continues {
            s.wait_stream(&side).unwrap();
            drop(s.end_capture().unwrap());
        }
        check_usable(device, &s);
        check_usable(device, &side);
        expect_device(device, &x, 1);
    };
    let by_another_thread = |device: &Device| {
        let s = stream(device, "s");
        s.begin_capture().unwrap();
        let other = std::thread::scope(|scope| scope.spawn(|| s.end_capture()).join());
        expect_code(other.unwrap(), 908);
        // A driver may have ended the capture; otherwise its own thread ends it.
        let _ = s.end_capture();
        check_usable(device, &s);
    };
    let invalid = |device: &Device| {
        let s = stream(device, "s");
        s.begin_capture().unwrap();
        expect_code(s.synchronize(), 900);
        // A driver ends a capture after such an error.
        match s.end_capture() {
            Ok(graph) => drop(graph),
            refused => expect_code(refused, 901),
        }
        check_usable(device, &s);
    };
    each_refused(target, [&unjoined, &by_another_thread, &invalid]);
}
