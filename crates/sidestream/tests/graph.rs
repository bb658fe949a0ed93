//! Graphs of the safe API: the results of stream work, the waits of one call, and ownership.

mod update;

use std::time::Duration;

use sidestream::check::OnRace;
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::graph::{BufKey, Graph, GraphBuilder};
use sidestream::kernel::{Grid, Kernel, KernelCost, Read, Value, Write};
use sidestream::op::Mode;
use sidestream::sim::Schedule;
use sidestream::stream::{Rows, Stream};

use crate::drawn::Random;
use crate::refusing::Refusing;
use crate::watch::Launches;

const SCHEDULES: [Schedule; 5] = [
    Schedule::InOrder,
    Schedule::Seeded(1),
    Schedule::Seeded(2),
    Schedule::Seeded(3),
    Schedule::Adversarial,
];

/// Runs a program under several schedules, each on a machine of its own, and checks its calls with the checker.
fn on_each(program: impl Fn(Device)) {
    for schedule in SCHEDULES {
        let options = Options::new().schedule(schedule);
        let device = Device::open_with("sim:h200", &options).unwrap();
        let findings = device.checked(OnRace::Report);
        program(device);
        let report = findings.report();
        assert!(report.error.is_none(), "{schedule:?}: {:?}", report.error);
        assert!(report.races.is_empty(), "{schedule:?}: {:?}", report.races);
    }
}

type Mix = Kernel<(Read<u32>, Write<u32>, Value<u32>)>;

/// The order of calls shows in the result: no two can be swapped.
fn mix() -> Mix {
    Kernel::<(Read<u32>, Write<u32>, Value<u32>)>::on_host("mix", |_, (x, y, n)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = mixed(*y, *x, n);
        }
    })
}

fn mixed(y: u32, x: u32, n: u32) -> u32 {
    (y.rotate_left(5) ^ x)
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add(n)
}

fn slow(share: f64) -> Kernel<(Write<u32>, Value<u32>)> {
    let kernel = Kernel::<(Write<u32>, Value<u32>)>::on_host("slow", |_, (x, n)| {
        x.iter_mut().for_each(|x| *x = x.wrapping_add(n));
    });
    kernel.with_cost(move |_| KernelCost::Duration {
        ns: 1_000_000,
        share,
    })
}

/// Returns the device time of one launch.
fn took(graph: &mut Graph, stream: &Stream) -> Duration {
    let start = stream.record_timed().unwrap();
    graph.launch(stream).unwrap();
    let end = stream.record_timed().unwrap();
    end.elapsed_since(&start).unwrap()
}

fn zeroed(nodes: &mut GraphBuilder, stream: &Stream, len: usize) -> BufKey<u32> {
    nodes.own(stream.alloc_zeroed(len).unwrap()).unwrap()
}

fn values(graph: &Graph, stream: &Stream, key: BufKey<u32>) -> Vec<u32> {
    let mut host = vec![0; key.len()];
    stream.memcpy_d2h(graph.view(key), &mut host).unwrap();
    host
}

// ------------------------------------------------------------------ results

#[test]
fn a_graph_gives_the_results_of_the_same_calls_in_a_stream() {
    for seed in 0..40 {
        println!("seed {seed}");
        on_each(|device| random_program(&device, seed));
    }
}

/// A node of a random graph, with its operands.
#[derive(Clone, Copy)]
enum Step {
    Mix(usize, usize, usize, usize, usize, u32),
    Copy(usize, usize, usize, usize, usize),
    Fill(usize, usize, usize, u32),
}

fn random_program(device: &Device, seed: u64) {
    const LEN: usize = 48;
    let mut random = Random(seed);
    let mut steps = Vec::new();
    for _ in 0..1 + random.below(24) {
        let len = 1 + random.below(LEN / 2);
        let [a, b] = [0; 2].map(|_| random.below(LEN - len + 1));
        let from = random.below(3);
        let to = (from + 1 + random.below(2)) % 3;
        let number = random.next() as u32;
        steps.push(match random.below(4) {
            0 => Step::Copy(from, a, to, b, len),
            1 => Step::Fill(to, b, len, number),
            _ => Step::Mix(from, a, to, b, len, number),
        });
    }
    let rounds = 1 + random.below(3);

    // On the host, one after another.
    let mut expected = [(); 3].map(|()| vec![0u32; LEN]);
    for _ in 0..rounds {
        for &step in &steps {
            match step {
                Step::Mix(from, a, to, b, len, n) => {
                    for i in 0..len {
                        expected[to][b + i] = mixed(expected[to][b + i], expected[from][a + i], n);
                    }
                }
                Step::Copy(from, a, to, b, len) => {
                    let copied = expected[from][a..a + len].to_vec();
                    expected[to][b..b + len].copy_from_slice(&copied);
                }
                Step::Fill(to, b, len, n) => expected[to][b..b + len].fill(n),
            }
        }
    }

    let streams = ["a", "b"].map(|name| device.stream(name).unwrap());
    let mix = mix();
    let mut nodes = device.graph();
    let keys = [(); 3].map(|()| zeroed(&mut nodes, &streams[0], LEN));
    for &step in &steps {
        match step {
            Step::Mix(from, a, to, b, len, n) => {
                let args = (
                    keys[from].slice(a..a + len),
                    keys[to].slice_mut(b..b + len),
                    n,
                );
                nodes.launch(&mix, Grid::new(1, 32), args).unwrap();
            }
            Step::Copy(from, a, to, b, len) => {
                let (from, to) = (keys[from].slice(a..a + len), keys[to].slice_mut(b..b + len));
                nodes.memcpy_d2d(from, to).unwrap();
            }
            Step::Fill(to, b, len, n) => {
                nodes.fill_with(keys[to].slice_mut(b..b + len), n).unwrap();
            }
        }
    }
    let mut graph = nodes.build().unwrap();
    for round in 0..rounds {
        graph.launch(&streams[round % 2]).unwrap();
    }
    for (key, expected) in keys.into_iter().zip(&expected) {
        assert_eq!(&values(&graph, &streams[0], key), expected, "seed {seed}");
    }
}

#[test]
fn a_graph_uploads_computes_and_downloads_what_the_host_changes_between_launches() {
    on_each(|device| {
        let streams = ["a", "b"].map(|name| device.stream(name).unwrap());
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &streams[0], 64);
        let y = zeroed(&mut nodes, &streams[0], 64);
        let sent = nodes.own_pinned(device.pinned::<u32>(64).unwrap()).unwrap();
        let back = nodes.own_pinned(device.pinned::<u32>(64).unwrap()).unwrap();
        nodes.upload(sent, x.view_mut()).unwrap();
        nodes.memset(y.view_mut(), 0).unwrap();
        let args = (x.view(), y.view_mut(), 3);
        nodes.launch(&mix(), Grid::new(1, 64), args).unwrap();
        nodes.download(y.slice(..32), back.slice(32..)).unwrap();
        nodes.download(y.slice(32..), back.slice(..32)).unwrap();
        let mut graph = nodes.build().unwrap();
        for round in 0..6 {
            graph.synchronize_pinned(sent).unwrap().fill(round);
            graph.launch(&streams[round as usize % 2]).unwrap();
            let back = graph.synchronize_pinned(back).unwrap();
            assert_eq!(back, [mixed(0, round, 3); 64]);
        }
    });
}

#[test]
fn rows_keep_their_pitches() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let mut nodes = device.graph();
        let mut host = device.pinned::<u32>(6).unwrap();
        host.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let host = nodes.own_pinned(host).unwrap();
        let back = nodes.own_pinned(device.pinned::<u32>(4).unwrap()).unwrap();
        let x = zeroed(&mut nodes, &stream, 12);
        let y = zeroed(&mut nodes, &stream, 12);
        let rows = |len, pitch| Rows {
            len,
            count: 2,
            pitch,
        };
        nodes
            .upload_rows(host, rows(3, 3), x.view_mut(), rows(3, 8))
            .unwrap();
        nodes
            .memcpy_d2d_rows(x.view(), rows(3, 8), y.view_mut(), rows(3, 4))
            .unwrap();
        nodes
            .download_rows(y.slice(1..), rows(2, 4), back, rows(2, 2))
            .unwrap();
        let error = nodes
            .upload_rows(host, rows(3, 3), x.view_mut(), rows(3, 10))
            .unwrap_err();
        assert!(error.to_string().contains("node 3, copy"), "{error}");
        let mut graph = nodes.build().unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(graph.synchronize_pinned(back).unwrap(), [2, 3, 5, 6]);
        assert_eq!(
            values(&graph, &stream, y),
            [1, 2, 3, 0, 4, 5, 6, 0, 0, 0, 0, 0]
        );
    });
}

// ------------------------------------------------------------------ order among nodes

#[test]
fn nodes_that_share_nothing_run_side_by_side() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let build = |second: fn(BufKey<u32>) -> sidestream::graph::PartMut<u32>| {
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &stream, 64);
        let kernel = slow(0.25);
        let grid = Grid::new(1, 32);
        nodes.launch(&kernel, grid, (x.slice_mut(..32), 1)).unwrap();
        nodes.launch(&kernel, grid, (second(x), 1)).unwrap();
        nodes.build().unwrap()
    };
    let apart = took(&mut build(|x| x.slice_mut(32..)), &stream);
    let shared = took(&mut build(|x| x.slice_mut(31..)), &stream);
    assert!((1_000..1_200).contains(&apart.as_micros()), "{apart:?}");
    assert!((2_000..2_200).contains(&shared.as_micros()), "{shared:?}");
}

#[test]
fn readers_of_the_same_bytes_run_side_by_side_and_the_next_writer_after_all() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let reads = Kernel::<(Read<u32>, Write<u32>)>::on_host("reads", |_, (x, y)| y[0] = x[0])
        .with_cost(|_| KernelCost::Duration {
            ns: 1_000_000,
            share: 0.25,
        });
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 1);
    let y = zeroed(&mut nodes, &stream, 3);
    nodes.fill_with(x.view_mut(), 7).unwrap();
    for at in 0..3 {
        let args = (x.view(), y.slice_mut(at..=at));
        nodes.launch(&reads, Grid::new(1, 1), args).unwrap();
    }
    nodes.fill_with(x.view_mut(), 9).unwrap();
    let mut graph = nodes.build().unwrap();
    let took = took(&mut graph, &stream);
    assert!((1_000..1_200).contains(&took.as_micros()), "{took:?}");
    assert_eq!(values(&graph, &stream, y), [7, 7, 7]);
    assert_eq!(values(&graph, &stream, x), [9]);
}

#[test]
fn an_edge_that_was_asked_for_keeps_two_nodes_apart() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 2);
    let (kernel, grid) = (slow(0.25), Grid::new(1, 1));
    let first = nodes.launch(&kernel, grid, (x.slice_mut(..1), 1)).unwrap();
    let second = nodes.launch(&kernel, grid, (x.slice_mut(1..), 1)).unwrap();
    nodes.after(second, first).unwrap();
    let error = nodes.after(first, second).unwrap_err().to_string();
    assert!(
        error.contains("node 0 cannot be ordered after node 1"),
        "{error}"
    );
    assert!(error.contains("add the nodes in the order"), "{error}");
    let took = took(&mut nodes.build().unwrap(), &stream);
    assert!((2_000..2_200).contains(&took.as_micros()), "{took:?}");
}

// ------------------------------------------------------------------ order among launches

#[test]
fn launches_on_two_streams_alternate_without_a_wait() {
    on_each(|device| {
        let streams = ["a", "b"].map(|name| device.stream(name).unwrap());
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &streams[0], 16);
        nodes
            .launch(&slow(1.0), Grid::new(1, 16), (x.view_mut(), 1))
            .unwrap();
        let mut graph = nodes.build().unwrap();
        // Other work in stream `a` before the graph is launched there: the graph orders `b` after that work.
        let mut other = streams[0].alloc::<u32>(16).unwrap();
        streams[0].fill_with(other.view_mut(), 5).unwrap();
        graph.launch(&streams[0]).unwrap();
        let before = device.waits_inserted();
        for round in 1..8 {
            graph.launch(&streams[round % 2]).unwrap();
        }
        streams[1].fill_with(other.view_mut(), 6).unwrap();
        assert_eq!(device.waits_inserted(), before);
        assert_eq!(values(&graph, &streams[1], x), [8; 16]);
    });
}

#[test]
fn work_of_other_streams_between_launches_is_waited_for() {
    on_each(|device| {
        let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &a, 32);
        let y = zeroed(&mut nodes, &a, 32);
        let args = (x.view(), y.view_mut(), 1);
        nodes.launch(&mix(), Grid::new(1, 32), args).unwrap();
        let mut graph = nodes.build().unwrap();
        let mut expected = 0;
        let mut kept = a.alloc_zeroed::<u32>(32).unwrap();
        for round in 0..5 {
            b.fill_with(graph.view_mut(x), round).unwrap();
            graph.launch(&a).unwrap();
            // A reader of what the next launch writes.
            let args = (graph.view(y), kept.view_mut(), 0);
            b.launch(&mix(), Grid::new(1, 32), args).unwrap();
            expected = mixed(expected, round, 1);
        }
        assert_eq!(values(&graph, &b, y), [expected; 32]);
    });
}

#[test]
fn bytes_that_no_node_touches_are_not_waited_for() {
    let device = Device::open("sim:h200").unwrap();
    let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &a, 64);
    nodes
        .launch(&slow(1.0), Grid::new(1, 1), (x.slice_mut(..16), 1))
        .unwrap();
    nodes
        .memcpy_d2d(x.slice(32..48), x.slice_mut(..16))
        .unwrap();
    let mut graph = nodes.build().unwrap();
    a.synchronize().unwrap();
    graph.launch(&a).unwrap();
    let before = device.waits_inserted();
    b.memset(graph.view_mut(x).slice(48..), 1).unwrap();
    b.memset(graph.view_mut(x).slice(16..32), 1).unwrap();
    let mut y = b.alloc::<u32>(16).unwrap();
    b.memcpy_d2d(graph.view(x).slice(32..48), y.view_mut())
        .unwrap();
    assert_eq!(device.waits_inserted(), before);
    b.memset(graph.view_mut(x).slice(32..48), 1).unwrap();
    assert_eq!(device.waits_inserted(), before + 1);
}

#[test]
fn after_a_refused_launch_later_work_still_waits_for_the_earlier_launch() {
    for schedule in SCHEDULES {
        let (backend, device) = Refusing::open(schedule);
        let [a, b, c] = ["a", "b", "c"].map(|name| device.stream(name).unwrap());
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &a, 16);
        nodes
            .launch(&slow(1.0), Grid::new(1, 16), (x.view_mut(), 1))
            .unwrap();
        let mut graph = nodes.build().unwrap();
        graph.launch(&a).unwrap();
        backend.refuse_graphs(true);
        let error = graph.launch(&b).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        backend.refuse_graphs(false);
        assert_eq!(values(&graph, &c, x), [1; 16], "{schedule:?}");
        graph.launch(&c).unwrap();
        assert_eq!(values(&graph, &a, x), [2; 16], "{schedule:?}");
    }
}

#[test]
fn a_launch_is_one_call_in_the_log_with_all_that_its_nodes_touch() {
    let device = Device::open("sim:h200").unwrap();
    let launches = Launches::of(&device);
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 64);
    let y = zeroed(&mut nodes, &stream, 64);
    // Reads 0..32 and 32..48 of `x` in two nodes, then writes 16..40 of it; does not touch 48 and up.
    let mix = mix();
    let grid = Grid::new(1, 32);
    let halves = (x.slice(..32), y.slice_mut(..32), 1);
    nodes.launch(&mix, grid, halves).unwrap();
    let halves = (x.slice(32..48), y.slice_mut(32..48), 1);
    nodes.launch(&mix, grid, halves).unwrap();
    nodes.fill_with(x.slice_mut(16..40), 3).unwrap();
    let mut graph = nodes.build().unwrap();
    for _ in 0..2 {
        graph.launch(&stream).unwrap();
    }
    let launches = launches.so_far();
    assert_eq!(launches.len(), 2);
    for launch in launches {
        let of = |at: usize| launch.accesses[at].buffer;
        let told = launch
            .accesses
            .iter()
            .map(|a| (a.buffer, a.start, a.end, a.mode));
        let expected = [
            (of(0), 0, 64, Mode::Read),
            (of(0), 64, 160, Mode::Write),
            (of(0), 160, 192, Mode::Read),
            (of(3), 0, 192, Mode::Write),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}

// ------------------------------------------------------------------ memory

#[test]
fn pinned_memory_is_lent_out_only_when_no_launch_uses_it() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 16);
    let sent = nodes.own_pinned(device.pinned::<u32>(16).unwrap()).unwrap();
    let back = nodes.own_pinned(device.pinned::<u32>(16).unwrap()).unwrap();
    nodes.upload(sent, x.view_mut()).unwrap();
    nodes
        .launch(&slow(1.0), Grid::new(1, 1), (x.view_mut(), 1))
        .unwrap();
    nodes.download(x.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.pinned_mut(sent).unwrap().fill(4);
    let over = graph.launch(&stream).unwrap();
    // The device only reads the uploaded memory, so the host may read it too.
    assert_eq!(graph.pinned(sent).unwrap(), [4; 16]);
    for error in [
        graph.pinned_mut(sent).unwrap_err(),
        graph.pinned(back).unwrap_err(),
    ] {
        assert!(error.to_string().contains("synchronize_pinned"), "{error}");
    }
    over.synchronize().unwrap();
    assert_eq!(graph.pinned(back).unwrap(), [5; 16]);
    graph.pinned_mut(sent).unwrap().fill(8);
    graph.launch(&stream).unwrap();
    assert_eq!(graph.synchronize_pinned(back).unwrap(), [9; 16]);
}

#[test]
fn pinned_memory_is_not_lent_out_too_early_without_tracking_either() {
    // SAFETY: there is one stream.
    let options = unsafe { Options::new().untracked() };
    let device = Device::open_with("sim:h200", &options).unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 16);
    let back = nodes.own_pinned(device.pinned::<u32>(16).unwrap()).unwrap();
    nodes
        .launch(&slow(1.0), Grid::new(1, 1), (x.view_mut(), 6))
        .unwrap();
    nodes.download(x.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    assert!(graph.pinned(back).is_err());
    assert_eq!(graph.synchronize_pinned(back).unwrap(), [6; 16]);
}

#[test]
fn memory_comes_back_and_its_next_use_is_ordered_after_the_launches() {
    on_each(|device| {
        let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &a, 16);
        let back = nodes.own_pinned(device.pinned::<u32>(16).unwrap()).unwrap();
        nodes
            .launch(&slow(1.0), Grid::new(1, 1), (x.view_mut(), 3))
            .unwrap();
        nodes.download(x.view(), back).unwrap();
        let mut graph = nodes.build().unwrap();
        graph.launch(&a).unwrap();
        let mut buffers = graph.into_buffers();
        let mut x = buffers.take(x);
        b.launch(&slow(1.0), Grid::new(1, 1), (x.view_mut(), 4))
            .unwrap();
        let mut host = [0; 16];
        b.memcpy_d2h(x.view(), &mut host).unwrap();
        assert_eq!(host, [7; 16]);
        assert_eq!(buffers.synchronize_pinned(back).unwrap()[..], [3; 16]);
    });
}

#[test]
fn a_graph_that_is_dropped_in_flight_runs_to_its_end_and_its_memory_is_not_given_away_too_early() {
    on_each(|device| {
        let [a, b] = ["a", "b"].map(|name| device.stream(name).unwrap());
        let mut sum = b.alloc_zeroed::<u32>(16).unwrap();
        let add = Kernel::<(Read<u32>, Write<u32>)>::on_host("add", |_, (x, y)| {
            y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
        });
        for _ in 0..6 {
            let mut nodes = device.graph();
            let x = nodes.own(a.alloc::<u32>(16).unwrap()).unwrap();
            nodes.fill_with(x.view_mut(), 7).unwrap();
            nodes
                .launch(&slow(1.0), Grid::new(1, 1), (x.view_mut(), 1))
                .unwrap();
            let mut graph = nodes.build().unwrap();
            let over = graph.launch(&a).unwrap();
            let args = (graph.view(x), sum.view_mut());
            b.launch(&add, Grid::new(1, 16), args).unwrap();
            drop(graph);
            assert!(!over.query().unwrap(), "the drop blocked");
        }
        let mut host = [0; 16];
        b.memcpy_d2h(sum.view(), &mut host).unwrap();
        assert_eq!(host, [48; 16]);
    });
}

#[test]
fn a_graph_that_outlives_its_device_gives_the_event_of_its_last_launch_back() {
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let stream = device.stream("s").unwrap();
    let mut graph = device.graph().build().unwrap();
    graph.launch(&stream).unwrap();
    drop((device, stream));
    assert_eq!(backend.events(), 1);
    drop(graph);
    assert_eq!(backend.events(), 0);
}

// ------------------------------------------------------------------ mistakes

#[test]
fn a_graph_runs_on_streams_of_its_own_device_only() {
    let devices = Device::open_all(&["sim:h200", "sim:h200"], &Options::new()).unwrap();
    let [here, there] = [0, 1].map(|at: usize| devices[at].stream("s").unwrap());
    let mut nodes = devices[0].graph();
    let x = zeroed(&mut nodes, &here, 4);
    let y = zeroed(&mut nodes, &there, 4);
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    let error = nodes
        .launch(&slow(1.0), Grid::new(1, 1), (y.view_mut(), 1))
        .unwrap_err();
    let error = error.to_string();
    assert!(error.contains("node 1, kernel `slow`"), "{error}");
    assert!(error.contains("copy it first"), "{error}");
    let mut graph = nodes.build().unwrap();
    here.fill_with(graph.view_mut(x), 6).unwrap();
    graph.launch(&here).unwrap();
    assert_eq!(values(&graph, &there, y), [6; 4]);
    let error = graph.launch(&there).unwrap_err().to_string();
    assert!(error.contains("built for device 0"), "{error}");
}

#[test]
fn machines_do_not_mix() {
    let [a, b] = [(); 2].map(|()| Device::open("sim:h200").unwrap());
    let mut nodes = a.graph();
    let refused = nodes
        .own(b.stream("s").unwrap().alloc::<u32>(4).unwrap())
        .unwrap_err();
    assert!(refused.to_string().contains("another machine"), "{refused}");
    assert_eq!(refused.value.map(|buffer| buffer.len()), Some(4));
    assert!(nodes.own_pinned(b.pinned::<u32>(4).unwrap()).is_err());
    let mut graph = nodes.build().unwrap();
    let error = graph.launch(&b.stream("s").unwrap()).unwrap_err();
    assert!(error.to_string().contains("different machines"), "{error}");
}

#[test]
fn an_invalid_node_is_refused_with_its_number_and_the_remedy() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 16);
    let host = nodes.own_pinned(device.pinned::<u32>(8).unwrap()).unwrap();
    nodes.memset(x.view_mut(), 0).unwrap();
    let long = nodes.own(stream.alloc::<u64>(4).unwrap()).unwrap();
    let refused = [
        (
            nodes.upload(host, x.view_mut()),
            "upload: node 1, copy: 8",
            "take a slice",
        ),
        (
            nodes.memcpy_d2d(x.slice(..8), x.slice_mut(4..12)),
            "memcpy_d2d: node 1, copy: it writes",
            "parts that do not",
        ),
        (
            nodes.launch(&mix(), Grid::new(1, 1), (x.view(), x.slice_mut(..1), 1)),
            "launch: node 1, kernel `mix`: it writes",
            "bytes 0..64 and 0..4",
        ),
        (
            nodes.launch(&slow(1.0), Grid::new(0, 1), (x.view_mut(), 1)),
            "node 1, kernel `slow`",
            "empty",
        ),
        (
            nodes.fill_with(long.view_mut(), 1),
            "node 1, fill",
            "launch a kernel",
        ),
    ];
    for (result, node, remedy) in refused {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(node) && error.contains(remedy), "{error}");
    }
    // SAFETY: the kernel never runs.
    let kernel = unsafe { Kernel::<(Write<u32>,)>::from_ptx("", "elsewhere") };
    nodes
        .launch(&kernel, Grid::new(1, 1), (x.view_mut(),))
        .unwrap();
    let error = nodes.build().unwrap_err();
    assert!(
        matches!(&error, Error::NoForm { kernel, .. } if kernel == "elsewhere"),
        "{error}"
    );
}

#[test]
#[should_panic(expected = "the key belongs to another graph")]
fn a_key_of_another_graph_is_a_mistake_in_the_code() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let [mut one, mut other] = [(); 2].map(|()| device.graph());
    let x = zeroed(&mut one, &stream, 4);
    zeroed(&mut other, &stream, 4);
    let _ = other.memset(x.view_mut(), 1);
}

#[test]
#[should_panic(expected = "the key belongs to another graph")]
fn a_graph_gives_no_view_for_the_key_of_another() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let [mut one, mut other] = [(); 2].map(|()| device.graph());
    let x = zeroed(&mut one, &stream, 4);
    zeroed(&mut other, &stream, 4);
    let graph = other.build().unwrap();
    let _ = graph.view(x);
}

#[test]
#[should_panic(expected = "an earlier description")]
fn a_node_of_an_earlier_description_is_a_mistake_in_the_code() {
    let device = Device::open("sim:h200").unwrap();
    let stream = device.stream("s").unwrap();
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 4);
    let y = zeroed(&mut nodes, &stream, 4);
    let earlier = nodes.memset(x.view_mut(), 1).unwrap();
    nodes.memset(y.view_mut(), 1).unwrap();
    let mut graph = nodes.build().unwrap();
    let mut nodes = graph.edit().unwrap();
    nodes.memset(x.view_mut(), 1).unwrap();
    let later = nodes.memset(y.view_mut(), 1).unwrap();
    // `earlier` belongs to another description: here its number would be that of another node.
    let _ = nodes.after(later, earlier);
}
