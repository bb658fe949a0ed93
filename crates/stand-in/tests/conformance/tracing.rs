//! Recordings with times: when the device ran what.

use std::collections::HashMap;

use sidestream::backend::Done;
use sidestream::check::OnRace;
use sidestream::device::Device;
use sidestream::log::{Reader, Record};
use sidestream::op::{Kind, Op, OpId, StreamId};

use crate::kernels::{HOLD_NS, expect_pattern, fill, filled, spin, values};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(every_work_has_a_time_in_the_order_of_its_stream),
        one(a_kernel_of_a_millisecond_takes_a_millisecond),
        one(waiting_work_begins_when_the_other_is_complete),
        one(graphs_and_functions_have_their_times),
        one(a_recording_can_be_drawn),
        one(recordings_come_one_after_the_other),
        one(a_listening_checker_finds_nothing),
    ]
}

const LEN: usize = 4096;

/// What a recorded program did: its calls, and when the device ran them.
struct Recorded {
    ops: Vec<Op>,
    times: HashMap<OpId, Done>,
}

fn record(device: &Device, program: impl FnOnce()) -> Recorded {
    let recording = device.record(Vec::new()).unwrap();
    program();
    device.synchronize().unwrap();
    let log = recording.finish().unwrap();
    let (mut ops, mut times) = (Vec::new(), HashMap::new());
    for record in Reader::new(&log[..]).unwrap() {
        match record.unwrap() {
            Record::Op(op) => ops.push(op.into_owned()),
            Record::Done(done) => assert!(times.insert(done.op, done).is_none()),
            _ => {}
        }
    }
    Recorded { ops, times }
}

impl Recorded {
    /// Returns the work on the device by stream: its kind, its start and its end.
    #[track_caller]
    fn by_stream(&self) -> HashMap<StreamId, Vec<(Kind, u64, u64)>> {
        let mut streams: HashMap<StreamId, Vec<(Kind, u64, u64)>> = HashMap::new();
        for op in self.ops.iter().filter(|op| is_work(op.kind)) {
            let done = self.times.get(&op.id).and_then(|done| done.work_ns);
            let (start, end) = done.unwrap_or_else(|| panic!("{op:?} has no time"));
            let stream = op.kind.stream().unwrap();
            streams
                .entry(stream)
                .or_default()
                .push((op.kind, start, end));
        }
        streams
    }

    fn kernels(&self) -> Vec<(u64, u64)> {
        let all = self.by_stream().into_values().flatten();
        let kernels = all.filter(|(kind, ..)| matches!(kind, Kind::Kernel { .. }));
        let mut kernels: Vec<(u64, u64)> = kernels.map(|(_, start, end)| (start, end)).collect();
        kernels.sort_unstable();
        kernels
    }
}

fn is_work(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Kernel { .. } | Kind::Copy { .. } | Kind::Memset { .. } | Kind::GraphLaunch { .. }
    )
}

/// Maximum time between two timed records without work between them, in both directions.
const SLACK_NS: u64 = 100_000;

fn every_work_has_a_time_in_the_order_of_its_stream(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let (mut x, mut y) = (filled(&a, LEN, 1), filled(&b, LEN, 1));
    let recorded = record(&device, || {
        for seed in 0..20 {
            fill(&a, x.view_mut(), seed);
            b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
            b.fill_with(y.slice_mut(..4), seed).unwrap();
            let back = b.download(y.view(), device.pinned(LEN).unwrap()).unwrap();
            let host = back.synchronize().unwrap();
            drop(a.upload(host, x.view_mut()).unwrap());
        }
    });
    let streams = recorded.by_stream();
    assert_eq!(streams.values().map(Vec::len).sum::<usize>(), 20 * 5);
    for works in streams.values() {
        for (kind, start, end) in works {
            assert!(start <= end, "{kind:?} {start}..{end}");
        }
        for pair in works.windows(2) {
            let ((_, _, end), (kind, start, _)) = (pair[0], pair[1]);
            assert!(start >= end, "{kind:?} starts at {start}, before {end}");
        }
    }
}

fn a_kernel_of_a_millisecond_takes_a_millisecond(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    spin(1_000).hold(&stream);
    stream.synchronize().unwrap();
    let recorded = record(&device, || {
        for _ in 0..3 {
            spin(1_000_000).hold(&stream);
        }
    });
    let kernels = recorded.kernels();
    assert_eq!(kernels.len(), 3);
    for (start, end) in kernels {
        assert!(
            (900_000..50_000_000).contains(&(end - start)),
            "{start}..{end}"
        );
    }
}

fn waiting_work_begins_when_the_other_is_complete(target: Target) {
    let device = target.open();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut x = filled(&a, LEN, 1);
    let recorded = record(&device, || {
        spin(HOLD_NS).hold(&a);
        fill(&a, x.view_mut(), 2);
        fill(&b, x.view_mut(), 3);
    });
    let kernels = recorded.kernels();
    let [held, first, second] = kernels[..] else {
        panic!("{kernels:?}");
    };
    assert!(held.1 - held.0 >= HOLD_NS * 9 / 10, "{kernels:?}");
    assert!(first.0 + SLACK_NS >= held.1, "{kernels:?}");
    assert!(second.0 + SLACK_NS >= first.1, "{kernels:?}");
    assert!(second.1 >= held.1, "{kernels:?}");
}

fn graphs_and_functions_have_their_times(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let first = spin(HOLD_NS).node(&mut nodes);
    let second = spin(HOLD_NS).node(&mut nodes);
    nodes.after(second, first).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap().synchronize().unwrap();
    let recorded = record(&device, || {
        graph.launch(&stream).unwrap();
        let ran = stream.host_func(1, |number| *number += 1).unwrap();
        assert_eq!(ran.synchronize().unwrap(), 2);
        graph.launch(&stream).unwrap();
    });
    let streams = recorded.by_stream();
    let works = streams.values().next().unwrap();
    assert_eq!((streams.len(), works.len()), (1, 2));
    for (kind, start, end) in works {
        assert!(end - start >= HOLD_NS * 19 / 10, "{kind:?} {start}..{end}");
    }
    assert!(works[1].1 >= works[0].2, "{works:?}");
}

fn a_recording_can_be_drawn(target: Target) {
    let device = target.open();
    let stream = device.stream("the stream").unwrap();
    let recording = device.record(Vec::new()).unwrap();
    {
        let _span = device.span("the span");
        let x = filled(&stream, LEN, 1);
        expect_pattern(&values(&stream, x.view()), 1);
    }
    device.synchronize().unwrap();
    let log = recording.finish().unwrap();
    let drawn = sidestream::trace::recorded(Reader::new(&log[..]).unwrap(), 1 << 24).unwrap();
    assert!(drawn.cut.is_none());
    assert!(drawn.timed > 0 && drawn.timed <= drawn.ops);
    let work = &drawn.trace.work;
    assert_eq!(work.len(), 2, "{work:?}");
    assert!(drawn.trace.spans.iter().any(|span| span.name == "the span"));
}

fn recordings_come_one_after_the_other(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    for seed in 2..5 {
        // Unrecorded work is in no recording.
        fill(&stream, x.view_mut(), 99);
        let recorded = record(&device, || fill(&stream, x.view_mut(), seed));
        assert_eq!(recorded.kernels().len(), 1);
        expect_pattern(&values(&stream, x.view()), seed);
    }
}

fn a_listening_checker_finds_nothing(target: Target) {
    let device = target.open();
    let findings = device.checked(OnRace::Panic);
    let streams = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
    for seed in 0..10 {
        let [a, b, c] = &streams;
        let mut x = a.alloc::<u32>(LEN).unwrap();
        fill(a, x.view_mut(), seed);
        let mut y = b.alloc::<u32>(LEN).unwrap();
        b.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        fill(c, x.view_mut(), 99);
        expect_pattern(&values(c, y.view()), seed);
    }
    assert!(findings.ops() > 50, "{} operations", findings.ops());
    assert!(findings.report().races.is_empty(), "{}", findings.text());
}
