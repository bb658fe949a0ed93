//! Two devices of one machine.

use std::time::Duration;

use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::explicit::{self, Event, Stream};
use sidestream::log::{Reader, Record};
use sidestream::op::Kind;

use crate::kernels::{
    HOLD_NS, check, expect_pattern, fill, fill_explicit, filled, is_seen_in_time, spin, values,
};
use crate::target::{Scenario, Target, two};
use crate::untracked::{self, expect_device};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        two(kernels_run_on_both_devices_at_once),
        two(memory_is_copied_from_one_device_to_the_other),
        two(a_large_copy_between_devices_is_right),
        two(a_copy_between_devices_names_the_other_device),
        two(a_stream_waits_for_one_of_the_other_device),
        two(a_ping_pong_between_devices_is_in_order),
        two(streams_of_two_devices_do_not_wait_for_each_other),
        two(pinned_memory_serves_both_devices),
        two(pieces_go_up_to_both_devices),
        two(a_graph_copies_pinned_memory_on_either_device),
        two(a_kernel_does_not_take_memory_of_the_other_device),
        two(to_synchronize_one_device_covers_that_one),
        two(an_event_is_recorded_on_its_own_device),
        two(an_event_is_queried_from_anywhere),
        two(times_of_two_devices_are_not_compared),
        two(a_threads_current_device_is_for_blocking_calls_only),
        two(each_device_has_a_legacy_stream_of_its_own),
        two(a_graph_runs_on_its_own_device),
        two(one_device_runs_out_of_memory_and_the_other_does_not),
        two(two_machines_share_the_devices),
    ]
}

const LEN: usize = 4096;

fn kernels_run_on_both_devices_at_once(target: Target) {
    let devices = target.open_two();
    let streams = devices.each_ref().map(|device| device.stream("s").unwrap());
    let mut buffers = streams.each_ref().map(|stream| filled(stream, LEN, 1));
    for round in 2..12 {
        for (at, (stream, buffer)) in streams.iter().zip(&mut buffers).enumerate() {
            fill(stream, buffer.view_mut(), round * 2 + at as u32);
        }
    }
    for (at, (stream, buffer)) in streams.iter().zip(&buffers).enumerate() {
        expect_pattern(&values(stream, buffer.view()), 22 + at as u32);
    }
    assert_ne!(devices[0].id(), devices[1].id());
}

fn memory_is_copied_from_one_device_to_the_other(target: Target) {
    let [a, b] = target.open_two().map(|device| device.stream("s").unwrap());
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
    for (seed, by) in (3..).zip([&a, &b, &a, &b]) {
        spin(HOLD_NS).hold(&a);
        fill(&a, x.view_mut(), seed);
        by.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        fill(&a, x.view_mut(), 100);
        expect_pattern(&values(&b, y.view()), seed);
        // A part of it is copied back.
        by.memcpy_d2d(y.slice(..100), x.slice_mut(50..150)).unwrap();
        expect_pattern(&values(&a, x.slice(50..150)), seed);
    }
}

fn a_large_copy_between_devices_is_right(target: Target) {
    let [a, b] = target.open_two().map(|device| device.stream("s").unwrap());
    let len = 1 << 20;
    let (x, mut y) = (filled(&a, len, 1), filled(&b, len, 2));
    let mut errors = b.alloc_zeroed::<u32>(1).unwrap();
    b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    check(&b, y.view(), 1, &mut errors);
    assert_eq!(values(&b, errors.view()), [0]);
}

fn a_copy_between_devices_names_the_other_device(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices.each_ref().map(|device| device.stream("s").unwrap());
    let (x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
    let recording = devices[0].record(Vec::new()).unwrap();
    a.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    expect_pattern(&values(&b, y.view()), 1);
    let log = recording.finish().unwrap();
    let records = Reader::new(&log[..]).unwrap();
    let peers = records.filter_map(|record| match record.unwrap() {
        Record::Op(op) => match op.kind {
            Kind::CopyPeer { peer, .. } => Some(peer),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(
        peers.collect::<Vec<_>>(),
        [devices[1].id(), devices[0].id()]
    );
}

fn a_stream_waits_for_one_of_the_other_device(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices
        .each_ref()
        .map(|device| untracked::stream(device, "s"));
    let (x, host) = (
        untracked::filled(&devices[0], 1),
        untracked::pinned(&devices[0], 2),
    );
    let event = Event::new(&devices[0]).unwrap();
    for seed in 3..6 {
        // SAFETY: `b` waits for `a`, and the host for `b`; the memory stays until then.
        unsafe {
            spin(HOLD_NS).hold_explicit(&a);
            fill_explicit(&a, x.all(), seed);
            a.record(&event).unwrap();
            b.wait(&event).unwrap();
            b.memcpy(x.all(), host.all()).unwrap();
        }
        b.synchronize().unwrap();
        untracked::expect_host(&host, seed);
        // R50, across devices.
        // SAFETY: as above.
        unsafe {
            spin(HOLD_NS).hold_explicit(&a);
            fill_explicit(&a, x.all(), seed + 10);
            b.wait_stream(&a).unwrap();
            b.memcpy(x.all(), host.all()).unwrap();
        }
        b.synchronize().unwrap();
        untracked::expect_host(&host, seed + 10);
    }
}

fn a_ping_pong_between_devices_is_in_order(target: Target) {
    let [a, b] = target.open_two().map(|device| device.stream("s").unwrap());
    let (mut x, mut y) = (filled(&a, LEN, 0), filled(&b, LEN, 0));
    let mut errors = [&a, &b].map(|stream| stream.alloc_zeroed::<u32>(1).unwrap());
    for seed in 0..50 {
        check(&a, x.view(), seed, &mut errors[0]);
        fill(&a, x.view_mut(), seed + 1);
        b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        check(&b, y.view(), seed + 1, &mut errors[1]);
        a.memcpy_d2d(y.view(), x.view_mut()).unwrap();
    }
    assert_eq!(values(&a, errors[0].view()), [0]);
    assert_eq!(values(&b, errors[1].view()), [0]);
}

fn streams_of_two_devices_do_not_wait_for_each_other(target: Target) {
    let devices = target.open_two();
    for (held, other) in [(0, 1), (1, 0)] {
        let (a, b) = (&devices[held], &devices[other]);
        let (a, b) = (a.stream("s").unwrap(), b.stream("s").unwrap());
        let mut x = filled(&b, LEN, 1);
        let seen = is_seen_in_time(|spin| {
            spin.hold(&a);
            fill(&b, x.view_mut(), 2);
            while !b.query().unwrap() {}
            let is_held = !a.query().unwrap();
            a.synchronize().unwrap();
            is_held
        });
        assert!(seen, "one device waited for the other");
    }
}

fn pinned_memory_serves_both_devices(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices.each_ref().map(|device| device.stream("s").unwrap());
    for owner in &devices {
        let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
        let mut host = owner.pinned::<u32>(LEN).unwrap();
        host.copy_from_slice(&crate::kernels::patterned(LEN, 3));
        let host = a.upload(host, x.view_mut()).unwrap().synchronize().unwrap();
        let host = b.upload(host, y.view_mut()).unwrap().synchronize().unwrap();
        let host = a.download(x.view(), host).unwrap().synchronize().unwrap();
        expect_pattern(&host, 3);
        expect_pattern(&values(&b, y.view()), 3);
    }
}

fn pieces_go_up_to_both_devices(target: Target) {
    let devices = target.open_two();
    let streams = devices.each_ref().map(|device| device.stream("s").unwrap());
    let mut pieces: Vec<_> = (0..60)
        .map(|at| devices[at % 2].pinned::<u32>(40 + at).unwrap())
        .collect();
    let len = pieces.iter().map(|piece| piece.len()).sum();
    for seed in 1..4 {
        let values_of = pieces.iter_mut().flat_map(|piece| piece.iter_mut());
        let values_of = values_of.enumerate();
        values_of.for_each(|(at, value)| *value = crate::kernels::pattern(at, seed));
        for stream in &streams {
            let mut x = filled(stream, len, 100);
            spin(HOLD_NS).hold(stream);
            let sent = stream.upload_pieces(pieces, x.view_mut()).unwrap();
            expect_pattern(&values(stream, x.view()), seed);
            pieces = sent.synchronize().unwrap();
        }
    }
}

/// Both devices can use pinned memory: it belongs to both.
fn a_graph_copies_pinned_memory_on_either_device(target: Target) {
    let devices = target.open_two();
    for (owner, device) in [(0, 1), (1, 0), (1, 1)].map(|(a, b)| (&devices[a], &devices[b])) {
        let stream = device.stream("s").unwrap();
        for len in [LEN, 1 << 16] {
            let mut nodes = device.graph();
            let page = || owner.pinned::<u32>(len).unwrap();
            let [sent, back] = [(); 2].map(|()| nodes.own_pinned(page()).unwrap());
            let x = nodes.own(filled(&stream, len, 1)).unwrap();
            nodes.upload(sent, x.view_mut()).unwrap();
            nodes.download(x.view(), back).unwrap();
            let mut graph = nodes.build().unwrap();
            let pattern = crate::kernels::patterned(len, 2);
            graph.pinned_mut(sent).unwrap().copy_from_slice(&pattern);
            graph.launch(&stream).unwrap();
            expect_pattern(graph.synchronize_pinned(back).unwrap(), 2);
            expect_pattern(&values(&stream, graph.view(x)), 2);
        }
    }
}

fn a_kernel_does_not_take_memory_of_the_other_device(target: Target) {
    let [a, b] = target.open_two().map(|device| device.stream("s").unwrap());
    let mut x = filled(&a, LEN, 1);
    let grid = sidestream::kernel::Grid::new(1, 32);
    let refused = b.launch(&crate::kernels::FILL, grid, (x.view_mut(), 1, 1));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    expect_pattern(&values(&a, x.view()), 1);
}

fn to_synchronize_one_device_covers_that_one(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices
        .each_ref()
        .map(|device| untracked::stream(device, "s"));
    let seen = is_seen_in_time(|hold| {
        hold.hold_explicit(&a);
        spin(HOLD_NS).hold_explicit(&b);
        explicit::synchronize(&devices[1]).unwrap();
        assert!(b.query().unwrap());
        let is_held = !a.query().unwrap();
        explicit::synchronize(&devices[0]).unwrap();
        assert!(a.query().unwrap());
        is_held
    });
    assert!(seen, "one device waited for the other");
}

fn an_event_is_recorded_on_its_own_device(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices
        .each_ref()
        .map(|device| untracked::stream(device, "s"));
    let [of_a, of_b] = devices.each_ref().map(|device| Event::new(device).unwrap());
    for (stream, event) in [(&a, &of_b), (&b, &of_a)] {
        let refused = stream.record(event);
        let is_right = matches!(refused, Err(Error::Refused { code: 400, .. }));
        assert!(is_right, "{refused:?}");
    }
    a.record(&of_a).unwrap();
    b.record(&of_b).unwrap();
    of_a.synchronize().unwrap();
    of_b.synchronize().unwrap();
}

fn an_event_is_queried_from_anywhere(target: Target) {
    let devices = target.open_two();
    let b = devices[1].stream("s").unwrap();
    explicit::set_device(&devices[0]).unwrap();
    let mut x = filled(&b, LEN, 1);
    spin(HOLD_NS).hold(&b);
    fill(&b, x.view_mut(), 2);
    let event = b.record_event().unwrap();
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    let other = std::thread::scope(|scope| scope.spawn(|| event.query()).join());
    assert!(other.unwrap().unwrap());
    expect_pattern(&values(&b, x.view()), 2);
}

fn times_of_two_devices_are_not_compared(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices.each_ref().map(|device| device.stream("s").unwrap());
    let [start, end] = [&a, &b].map(|stream| stream.record_timed().unwrap());
    let refused = end.elapsed_since(&start);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let [a, b] = devices
        .each_ref()
        .map(|device| untracked::stream(device, "t"));
    let [of_a, of_b] = devices
        .each_ref()
        .map(|device| Event::timed(device).unwrap());
    a.record(&of_a).unwrap();
    b.record(&of_b).unwrap();
    [a, b]
        .iter()
        .for_each(|stream| stream.synchronize().unwrap());
    let refused = of_b.elapsed_ns_since(&of_a);
    let is_right = matches!(refused, Err(Error::Refused { code: 400, .. }));
    assert!(is_right, "{refused:?}");
    // Two events of the second device can be compared.
    let b = devices[1].stream("s").unwrap();
    spin(1_000).hold(&b);
    let start = b.record_timed().unwrap();
    spin(HOLD_NS).hold(&b);
    let took = b.record_timed().unwrap().elapsed_since(&start).unwrap();
    assert!(took >= Duration::from_nanos(HOLD_NS * 95 / 100), "{took:?}");
}

/// Runs a function on a thread whose current device is this one.
fn with_current<R: Send>(device: &Device, act: impl FnOnce() -> R + Send) -> R {
    let on_thread = || {
        explicit::set_device(device).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(on_thread).join().unwrap())
}

fn a_threads_current_device_is_for_blocking_calls_only(target: Target) {
    let devices = target.open_two();
    for (current, other) in [(0, 1), (1, 0)] {
        with_current(&devices[current], || {
            let stream = devices[other].stream("s").unwrap();
            let mut x = filled(&stream, LEN, 1);
            fill(&stream, x.view_mut(), 2);
            let back = values(&stream, x.view());
            expect_pattern(&back, 2);
            let own = devices[current].stream("s").unwrap();
            let y = filled(&own, LEN, 3);
            expect_pattern(&values(&own, y.view()), 3);
        });
    }
    // A blocking copy runs in the legacy stream of the thread's device, after its blocking streams.
    for device in &devices {
        with_current(device, || {
            let blocking = Stream::blocking(device, "b").unwrap();
            let (x, host) = (untracked::filled(device, 1), untracked::pinned(device, 2));
            // SAFETY: the copy is ordered after the blocking stream (R14) and is complete when it returns; the memory
            // is not freed until then.
            unsafe {
                spin(HOLD_NS).hold_explicit(&blocking);
                fill_explicit(&blocking, x.all(), 3);
                explicit::memcpy_blocking(x.all(), host.all()).unwrap();
            }
            untracked::expect_host(&host, 3);
        });
    }
}

fn each_device_has_a_legacy_stream_of_its_own(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices
        .each_ref()
        .map(|device| Stream::legacy(device).unwrap());
    let blocking = Stream::blocking(&devices[1], "b").unwrap();
    let x = untracked::filled(&devices[1], 1);
    let held = Event::new(&devices[0]).unwrap();
    let seen = is_seen_in_time(|spin| {
        spin.hold_explicit(&a);
        a.record(&held).unwrap();
        // SAFETY: the memory has no other use, and the device is waited for.
        unsafe { fill_explicit(&blocking, x.all(), 2) };
        b.synchronize().unwrap();
        let is_held = !held.query().unwrap();
        held.synchronize().unwrap();
        is_held
    });
    assert!(seen, "the legacy stream of one device delayed the other");
    expect_device(&devices[1], &x, 2);
}

fn a_graph_runs_on_its_own_device(target: Target) {
    let devices = target.open_two();
    let [a, b] = devices.each_ref().map(|device| device.stream("s").unwrap());
    let mut nodes = devices[1].graph();
    let x = nodes.own(filled(&a, LEN, 1)).unwrap();
    let y = nodes.own(filled(&b, LEN, 2)).unwrap();
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    let mut graph = nodes.build().unwrap();
    let refused = graph.launch(&a);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    for seed in 3..6 {
        spin(HOLD_NS).hold(&a);
        fill(&a, graph.view_mut(x), seed);
        graph.launch(&b).unwrap();
        fill(&a, graph.view_mut(x), 100);
        expect_pattern(&values(&b, graph.view(y)), seed);
    }
}

fn one_device_runs_out_of_memory_and_the_other_does_not(target: Target) {
    let options = target.options().memory_bytes(2 << 20);
    let devices = target.try_open(2, &options).unwrap();
    let [a, b] = [0, 1].map(|at: usize| devices[at].stream("s").unwrap());
    let held = a.alloc::<u8>(2 << 20).unwrap();
    let Err(Error::OutOfMemory(memory)) = a.alloc::<u8>(2 << 20) else {
        panic!("there was room for it twice");
    };
    assert_eq!(memory.device, Some(devices[0].id()));
    let x = filled(&b, (2 << 20) / 4, 1);
    expect_pattern(&values(&b, x.slice(..LEN)), 1);
    drop(held);
    assert!(a.alloc::<u8>(2 << 20).is_ok());
}

fn two_machines_share_the_devices(target: Target) {
    let [here, _] = target.open_two();
    let [_, there] = target.open_two();
    let (a, b) = (here.stream("s").unwrap(), there.stream("s").unwrap());
    let (x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 2));
    let refused = b.memcpy_d2d(x.view(), y.view_mut());
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    drop(x);
    drop(a);
    drop(here);
    expect_pattern(&values(&b, y.view()), 2);
}
