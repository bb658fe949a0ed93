//! Graphs of the safe API.

use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::graph::{BufKey, Graph, GraphBuilder};
use sidestream::kernel::Grid;
use sidestream::stream::{Rows, Stream};

use crate::kernels::{
    CHECK, FILL, HOLD_NS, STEP, expect_pattern, fill, filled, is_seen_in_time, pattern, patterned,
    spin, stepped, values,
};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(nodes_of_every_kind_have_the_effect_of_the_calls),
        one(nodes_are_ordered_after_nodes_that_they_conflict_with),
        one(a_graph_replays_a_hundred_times),
        one(branches_that_share_nothing_run_side_by_side),
        one(launches_on_two_streams_follow_one_another),
        one(a_launch_waits_for_other_streams_and_they_for_it),
        one(a_launch_does_not_delay_streams_that_share_nothing),
        one(pinned_parts_are_the_hosts_between_launches),
        one(pinned_memory_can_be_lent_and_comes_back),
        one(buffers_come_back_from_a_graph),
        one(a_graph_that_is_dropped_while_it_runs_completes),
        one(a_graph_of_many_nodes_is_right),
        one(a_graph_without_nodes_can_be_launched),
        one(an_invalid_node_is_refused),
        one(small_and_large_copies_of_pinned_memory_are_right),
        one(small_copies_of_bytes_begin_and_end_anywhere),
    ]
}

const LEN: usize = 1024;

fn grid() -> Grid {
    Grid::cover(LEN, 256)
}

fn open(target: Target) -> (Device, Stream) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    (device, stream)
}

fn zeroed(nodes: &mut GraphBuilder, stream: &Stream, len: usize) -> BufKey<u32> {
    nodes.own(stream.alloc_zeroed(len).unwrap()).unwrap()
}

fn of_graph(graph: &Graph, stream: &Stream, key: BufKey<u32>) -> Vec<u32> {
    values(stream, graph.view(key))
}

fn nodes_of_every_kind_have_the_effect_of_the_calls(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let keys = [LEN; 5].map(|len| zeroed(&mut nodes, &stream, len));
    let [x, y, rows, errors, bytes] = keys;
    let [sent, back] = [(); 2].map(|()| nodes.own_pinned(device.pinned::<u32>(LEN).unwrap()));
    let (sent, back) = (sent.unwrap(), back.unwrap());
    nodes.upload(sent, x.view_mut()).unwrap();
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    let (narrow, wide) = (row(10), row(16));
    nodes
        .memcpy_d2d_rows(y.view(), narrow, rows.view_mut(), wide)
        .unwrap();
    nodes.fill_with(y.slice_mut(5..9), 0xdead_beef).unwrap();
    nodes.memset(bytes.slice_mut(..3), 0x11).unwrap();
    let args = (x.view(), LEN as u64, 3, errors.slice_mut(..1));
    nodes.launch(&CHECK, grid(), args).unwrap();
    nodes.download(y.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph
        .pinned_mut(sent)
        .unwrap()
        .copy_from_slice(&patterned(LEN, 3));
    graph.launch(&stream).unwrap();

    let copied = graph.synchronize_pinned(back).unwrap();
    assert_eq!(copied[5..9], [0xdead_beef; 4]);
    assert_eq!((copied[4], copied[9]), (pattern(4, 3), pattern(9, 3)));
    assert_eq!(of_graph(&graph, &stream, errors)[0], 0);
    assert_eq!(
        of_graph(&graph, &stream, bytes)[..4],
        [0x1111_1111, 0x1111_1111, 0x1111_1111, 0]
    );
    let found = of_graph(&graph, &stream, rows);
    for (at, row) in found.chunks(16).take(20).enumerate() {
        let expected = (0..16).map(|column| {
            if column < 10 {
                pattern(10 * at + column, 3)
            } else {
                0
            }
        });
        assert!(row.iter().copied().eq(expected), "row {at}");
    }
}

fn row(pitch: usize) -> Rows {
    Rows {
        len: 10,
        count: 20,
        pitch,
    }
}

/// A chain through three buffers in which no two nodes can be swapped.
fn nodes_are_ordered_after_nodes_that_they_conflict_with(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let [x, y, z] = [LEN; 3].map(|len| zeroed(&mut nodes, &stream, len));
    let n = LEN as u64;
    nodes.launch(&FILL, grid(), (x.view_mut(), n, 1)).unwrap();
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    nodes.launch(&FILL, grid(), (x.view_mut(), n, 2)).unwrap();
    nodes
        .memcpy_d2d(y.slice(..LEN / 2), z.slice_mut(LEN / 2..))
        .unwrap();
    nodes
        .memcpy_d2d(x.slice(..LEN / 2), z.slice_mut(..LEN / 2))
        .unwrap();
    nodes.fill_with(y.view_mut(), 9).unwrap();
    let mut graph = nodes.build().unwrap();
    for _ in 0..20 {
        graph.launch(&stream).unwrap();
        let found = of_graph(&graph, &stream, z);
        expect_pattern(&found[..LEN / 2], 2);
        expect_pattern(&found[LEN / 2..], 1);
        assert_eq!(of_graph(&graph, &stream, y), [9; LEN]);
    }
}

fn a_graph_replays_a_hundred_times(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let mut from = stream.alloc::<f32>(LEN).unwrap();
    stream.fill_with(from.view_mut(), 1.0).unwrap();
    let x = nodes.own(from).unwrap();
    let y = nodes.own(stream.alloc_zeroed::<f32>(LEN).unwrap()).unwrap();
    let n = LEN as u64;
    nodes
        .launch(&STEP, grid(), (x.view(), y.view_mut(), n, 3))
        .unwrap();
    nodes
        .launch(&STEP, grid(), (y.view(), x.view_mut(), n, 4))
        .unwrap();
    let mut graph = nodes.build().unwrap();
    for _ in 0..100 {
        graph.launch(&stream).unwrap();
    }
    let mut host = [0.0; LEN];
    stream.memcpy_d2h(graph.view(x), &mut host).unwrap();
    assert!(
        host.iter()
            .all(|value| value.to_bits() == stepped(1.0, 700).to_bits())
    );
}

fn branches_that_share_nothing_run_side_by_side(target: Target) {
    let (device, stream) = open(target);
    let hold = spin(HOLD_NS);
    let graph_of = |branches: usize, is_chain: bool| {
        let mut nodes = device.graph();
        let mut before = None;
        for _ in 0..branches {
            let node = hold.node(&mut nodes);
            if let Some(before) = before.filter(|_| is_chain) {
                nodes.after(node, before).unwrap();
            }
            before = Some(node);
        }
        nodes.build().unwrap()
    };
    let took = |graph: &mut Graph| {
        // The first launch may load the graph.
        graph.launch(&stream).unwrap();
        let start = stream.record_timed().unwrap();
        graph.launch(&stream).unwrap();
        let end = stream.record_timed().unwrap();
        end.elapsed_since(&start).unwrap().as_nanos() as u64
    };
    let chain = took(&mut graph_of(4, true));
    assert!(
        chain >= 4 * HOLD_NS * 95 / 100,
        "{chain} ns for four in a row"
    );
    let side_by_side = took(&mut graph_of(4, false));
    assert!(
        side_by_side < chain * 3 / 4,
        "{side_by_side} ns for four, {chain} ns in a row"
    );
}

fn launches_on_two_streams_follow_one_another(target: Target) {
    let (device, a) = open(target);
    let b = device.stream("b").unwrap();
    let mut nodes = device.graph();
    let mut from = a.alloc::<f32>(LEN).unwrap();
    a.fill_with(from.view_mut(), 1.0).unwrap();
    let x = nodes.own(from).unwrap();
    let y = nodes.own(a.alloc_zeroed::<f32>(LEN).unwrap()).unwrap();
    let n = LEN as u64;
    nodes
        .launch(&STEP, grid(), (x.view(), y.view_mut(), n, 1))
        .unwrap();
    nodes.memcpy_d2d(y.view(), x.view_mut()).unwrap();
    let mut graph = nodes.build().unwrap();
    spin(HOLD_NS).hold(&a);
    for round in 0..50 {
        graph.launch(if round % 2 == 0 { &a } else { &b }).unwrap();
    }
    let mut host = [0.0; LEN];
    a.memcpy_d2h(graph.view(x), &mut host).unwrap();
    assert!(
        host.iter()
            .all(|value| value.to_bits() == stepped(1.0, 50).to_bits())
    );
}

fn a_launch_waits_for_other_streams_and_they_for_it(target: Target) {
    let (device, a) = open(target);
    let b = device.stream("b").unwrap();
    let mut nodes = device.graph();
    let [x, y] = [LEN; 2].map(|len| zeroed(&mut nodes, &a, len));
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    let mut graph = nodes.build().unwrap();
    for seed in 1..5 {
        spin(HOLD_NS).hold(&b);
        fill(&b, graph.view_mut(x), seed);
        graph.launch(&a).unwrap();
        fill(&b, graph.view_mut(x), 100);
        expect_pattern(&values(&b, graph.view(y)), seed);
    }
}

fn a_launch_does_not_delay_streams_that_share_nothing(target: Target) {
    let (device, a) = open(target);
    let b = device.stream("b").unwrap();
    let mut x = filled(&b, LEN, 1);
    let seen = is_seen_in_time(|hold| {
        let mut nodes = device.graph();
        hold.node(&mut nodes);
        let mut graph = nodes.build().unwrap();
        let launched = graph.launch(&a).unwrap();
        fill(&b, x.view_mut(), 2);
        while !b.query().unwrap() {}
        let is_held = !launched.query().unwrap();
        launched.synchronize().unwrap();
        assert!(a.query().unwrap());
        is_held
    });
    assert!(seen, "`b` was not seen to be complete before the graph");
}

fn pinned_parts_are_the_hosts_between_launches(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, LEN);
    let [sent, back] = [(); 2].map(|()| nodes.own_pinned(device.pinned::<u32>(2 * LEN).unwrap()));
    let (sent, back) = (sent.unwrap(), back.unwrap());
    nodes.upload(sent.slice(LEN..), x.view_mut()).unwrap();
    hold_with(&mut nodes);
    nodes.download(x.view(), back.slice(..LEN)).unwrap();
    let mut graph = nodes.build().unwrap();
    for seed in 0..10 {
        let host = graph.synchronize_pinned(sent).unwrap();
        host[LEN..].copy_from_slice(&patterned(LEN, seed));
        graph.launch(&stream).unwrap();
        expect_pattern(&graph.synchronize_pinned(back).unwrap()[..LEN], seed);
        assert!(graph.pinned(back).is_ok());
    }
    let seen = is_seen_in_time(|spin| {
        spin.hold(&stream);
        graph.launch(&stream).unwrap();
        let refused = graph.pinned_mut(sent);
        let was_refused = matches!(refused, Err(Error::Invalid { .. }));
        stream.synchronize().unwrap();
        assert!(graph.pinned_mut(sent).is_ok());
        was_refused
    });
    assert!(seen, "the host got memory that a launch was still to read");
}

fn hold_with(nodes: &mut GraphBuilder) {
    spin(10_000).node(nodes);
}

fn pinned_memory_can_be_lent_and_comes_back(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, LEN);
    let sent = nodes
        .own_pinned(device.pinned::<u32>(LEN).unwrap())
        .unwrap();
    nodes.upload(sent, x.view_mut()).unwrap();
    let mut graph = nodes.build().unwrap();
    for seed in 0..5 {
        let mut lent = graph.lend_pinned(sent).unwrap();
        assert!(matches!(graph.launch(&stream), Err(Error::Invalid { .. })));
        let fills = std::thread::spawn(move || {
            lent.copy_from_slice(&patterned(LEN, seed));
            lent
        });
        graph.return_pinned(sent, fills.join().unwrap()).unwrap();
        graph.launch(&stream).unwrap();
        expect_pattern(&of_graph(&graph, &stream, x), seed);
    }
}

fn buffers_come_back_from_a_graph(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, LEN);
    let back = nodes
        .own_pinned(device.pinned::<u32>(LEN).unwrap())
        .unwrap();
    spin(HOLD_NS).node(&mut nodes);
    nodes
        .launch(&FILL, grid(), (x.view_mut(), LEN as u64, 4))
        .unwrap();
    nodes.download(x.view(), back).unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    let mut buffers = graph.into_buffers();
    let (x, other) = (buffers.take(x), device.stream("o").unwrap());
    expect_pattern(&values(&other, x.view()), 4);
    expect_pattern(&buffers.synchronize_pinned(back).unwrap(), 4);
}

fn a_graph_that_is_dropped_while_it_runs_completes(target: Target) {
    let (device, stream) = open(target);
    let mut errors = stream.alloc_zeroed::<u32>(1).unwrap();
    for seed in 0..10 {
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &stream, LEN);
        nodes
            .launch(&FILL, grid(), (x.view_mut(), LEN as u64, seed))
            .unwrap();
        let back = nodes
            .own_pinned(device.pinned::<u32>(LEN).unwrap())
            .unwrap();
        nodes.download(x.view(), back).unwrap();
        let mut graph = nodes.build().unwrap();
        spin(HOLD_NS).hold(&stream);
        let launched = graph.launch(&stream).unwrap();
        crate::kernels::check(&stream, graph.view(x), seed, &mut errors);
        drop(graph);
        launched.synchronize().unwrap();
    }
    assert_eq!(values(&stream, errors.view()), [0]);
}

fn a_graph_of_many_nodes_is_right(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, 400);
    for at in 0..400u32 {
        let part = x.slice_mut(at as usize..at as usize + 1);
        nodes
            .launch(&FILL, Grid::new(1, 32), (part, 1, at))
            .unwrap();
    }
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    let found = of_graph(&graph, &stream, x);
    assert!(
        (0..)
            .zip(&found)
            .all(|(at, &value)| value == pattern(0, at))
    );
}

fn a_graph_without_nodes_can_be_launched(target: Target) {
    let (device, stream) = open(target);
    let mut graph = device.graph().build().unwrap();
    graph.launch(&stream).unwrap();
    let mut x = filled(&stream, LEN, 1);
    graph.launch(&stream).unwrap();
    fill(&stream, x.view_mut(), 2);
    expect_pattern(&values(&stream, x.view()), 2);
}

fn an_invalid_node_is_refused(target: Target) {
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let x = zeroed(&mut nodes, &stream, LEN);
    let empty = nodes.launch(&FILL, Grid::new(0, 32), (x.view_mut(), 1, 1));
    assert!(matches!(empty, Err(Error::Invalid { .. })), "{empty:?}");
    let short = nodes.memcpy_d2d(x.slice(..3), x.slice_mut(4..8));
    assert!(matches!(short, Err(Error::Invalid { .. })), "{short:?}");
    nodes
        .launch(&FILL, grid(), (x.view_mut(), LEN as u64, 6))
        .unwrap();
    let mut graph = nodes.build().unwrap();
    graph.launch(&stream).unwrap();
    expect_pattern(&of_graph(&graph, &stream, x), 6);
}

/// On CUDA, copies of up to 128 KiB become kernels; larger ones stay copies.
fn small_and_large_copies_of_pinned_memory_are_right(target: Target) {
    const MOST: usize = (128 << 10) / 4;
    let (device, stream) = open(target);
    let mut nodes = device.graph();
    let lens = [1, 3, 1000, MOST - 1, MOST, MOST + 1, 100_003];
    let parts = lens.map(|len| {
        let page = || device.pinned::<u32>(len).unwrap();
        let [sent, back] = [(); 2].map(|()| nodes.own_pinned(page()).unwrap());
        let x = zeroed(&mut nodes, &stream, len);
        nodes.upload(sent, x.view_mut()).unwrap();
        nodes.download(x.view(), back).unwrap();
        (sent, back, x)
    });
    let mut graph = nodes.build().unwrap();
    for seed in 0..4 {
        for ((sent, ..), len) in parts.into_iter().zip(lens) {
            let sent = graph.synchronize_pinned(sent).unwrap();
            sent.copy_from_slice(&patterned(len, seed + len as u32));
        }
        graph.launch(&stream).unwrap();
        for ((_, back, x), len) in parts.into_iter().zip(lens) {
            let seed = seed + len as u32;
            expect_pattern(graph.synchronize_pinned(back).unwrap(), seed);
            expect_pattern(&of_graph(&graph, &stream, x), seed);
        }
    }
}

fn small_copies_of_bytes_begin_and_end_anywhere(target: Target) {
    const BYTES: usize = 3000;
    let (device, stream) = open(target);
    for (from, to) in [(0, 1), (1, 0), (3, 2), (5, 5), (2, 7), (16, 4)] {
        for len in [1, 2, 3, 5, 15, 17, 64, 1021, 2970] {
            let mut nodes = device.graph();
            let page = || device.pinned::<u8>(BYTES).unwrap();
            let [sent, back] = [(); 2].map(|()| nodes.own_pinned(page()).unwrap());
            let x = nodes.own(stream.alloc_zeroed::<u8>(BYTES).unwrap());
            let x = x.unwrap();
            let (start, end) = (to, to + len);
            let part = sent.slice(from..from + len);
            nodes.upload(part, x.slice_mut(start..end)).unwrap();
            nodes
                .download(x.slice(start..end), back.slice(from..from + len))
                .unwrap();
            let mut graph = nodes.build().unwrap();
            let bytes: Vec<u8> = (0..BYTES).map(|at| pattern(at, 7) as u8).collect();
            graph.pinned_mut(sent).unwrap().copy_from_slice(&bytes);
            graph.pinned_mut(back).unwrap().fill(0xaa);
            graph.launch(&stream).unwrap();
            let copied = &bytes[from..from + len];
            let mut on_device = vec![1; BYTES];
            stream.memcpy_d2h(graph.view(x), &mut on_device).unwrap();
            assert!(
                on_device[start..end] == *copied,
                "{len} from {from} to {to}"
            );
            let outside = on_device[..start].iter().chain(&on_device[end..]);
            assert!(outside.copied().all(|byte| byte == 0), "{len} to {to}");
            let host = graph.synchronize_pinned(back).unwrap();
            assert!(host[from..from + len] == *copied, "{len} back to {from}");
            let outside = host[..from].iter().chain(&host[from + len..]);
            assert!(outside.copied().all(|byte| byte == 0xaa), "{len} to {from}");
        }
    }
}
