//! Graphs that are updated to others of the same shape, and updates that are refused.

use sidestream::device::Device;
use sidestream::error::{Error, Result};
use sidestream::explicit::{DeviceMemory, Graph as Captured, Stream as Explicit};
use sidestream::graph::{BufKey, Graph, GraphBuilder, PinnedKey};
use sidestream::kernel::Grid;
use sidestream::stream::Stream;

use crate::kernels::{
    FILL, HOLD_NS, expect_pattern, fill, fill_explicit, filled, pattern, spin, values,
};
use crate::target::{Scenario, Target, one, two};
use crate::untracked::{self, expect_device};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(an_edited_graph_does_something_else_with_the_same_memory),
        one(an_updated_graph_takes_other_memory_and_gives_back_its_own),
        one(launches_before_an_update_do_what_the_graph_did_then),
        one(another_shape_is_refused_and_the_old_graph_still_runs),
        one(an_edited_graph_of_another_shape_can_be_built),
        one(a_capture_updates_a_graph_of_its_shape_only),
        two(each_device_updates_its_own_graphs),
    ]
}

const LEN: usize = 1024;

fn open(target: Target) -> (Device, Stream) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    (device, stream)
}

/// What the graphs own: the buffer that the kernel writes, its copy, and the download's target.
#[derive(Clone, Copy)]
struct Keys {
    x: BufKey<u32>,
    y: BufKey<u32>,
    back: PinnedKey<u32>,
}

fn own(device: &Device, stream: &Stream, nodes: &mut GraphBuilder) -> Keys {
    let [x, y] = [(); 2].map(|()| nodes.own(stream.alloc_zeroed(LEN).unwrap()).unwrap());
    let back = nodes.own_pinned(device.pinned(LEN).unwrap()).unwrap();
    Keys { x, y, back }
}

/// Writes a pattern to `x`, copies it to `y`, overwrites the first value of `y`, and downloads it.
fn describe(nodes: &mut GraphBuilder, keys: Keys, len: usize, seed: u32) {
    let Keys { x, y, back } = keys;
    let grid = Grid::cover(len, 64);
    let args = (x.slice_mut(..len), len as u64, seed);
    nodes.launch(&FILL, grid, args).unwrap();
    nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
    nodes.fill_with(y.slice_mut(..1), !seed).unwrap();
    nodes.download(y.view(), back).unwrap();
}

/// Returns a graph with memory of its own.
fn built(device: &Device, stream: &Stream) -> (Graph, Keys) {
    let mut nodes = device.graph();
    let keys = own(device, stream, &mut nodes);
    describe(&mut nodes, keys, LEN, 1);
    (nodes.build().unwrap(), keys)
}

/// Checks the contents of `y`, if `x` had another pattern before.
#[track_caller]
fn expect(found: &[u32], len: usize, seed: u32, rest: u32) {
    assert_eq!(found[0], !seed);
    let seed_at = |at| if at < len { seed } else { rest };
    let expected = (1..LEN).map(|at| pattern(at, seed_at(at)));
    assert!(
        found[1..].iter().copied().eq(expected),
        "{:x?}",
        &found[..4]
    );
}

#[track_caller]
fn expect_other_shape(error: &Error) {
    let is_right = matches!(error, Error::Refused { code: 910, .. });
    assert!(is_right, "{error}");
}

fn an_edited_graph_does_something_else_with_the_same_memory(target: Target) {
    let (device, stream) = open(target);
    let (mut graph, keys) = built(&device, &stream);
    graph.launch(&stream).unwrap();
    expect(graph.synchronize_pinned(keys.back).unwrap(), LEN, 1, 0);
    let mut rest = 1;
    for (len, seed) in [(LEN, 2), (LEN / 2, 3), (LEN, 4), (1, 5)] {
        let mut nodes = graph.edit().unwrap();
        describe(&mut nodes, keys, len, seed);
        graph.update(nodes).unwrap();
        for _ in 0..2 {
            graph.launch(&stream).unwrap();
            expect(
                graph.synchronize_pinned(keys.back).unwrap(),
                len,
                seed,
                rest,
            );
        }
        fill(&stream, graph.view_mut(keys.x), seed);
        rest = seed;
    }
}

fn an_updated_graph_takes_other_memory_and_gives_back_its_own(target: Target) {
    let (device, stream) = open(target);
    let (mut graph, old) = built(&device, &stream);
    spin(HOLD_NS).hold(&stream);
    graph.launch(&stream).unwrap();
    let mut nodes = device.graph();
    let new = own(&device, &stream, &mut nodes);
    describe(&mut nodes, new, LEN, 2);
    let mut buffers = graph.update(nodes).unwrap();
    graph.launch(&stream).unwrap();
    expect(graph.synchronize_pinned(new.back).unwrap(), LEN, 2, 0);
    expect_pattern(&values(&stream, graph.view(new.x)), 2);
    // The memory that the graph owned before has the values that the first launch wrote.
    let other = device.stream("o").unwrap();
    let (x, y) = (buffers.take(old.x), buffers.take(old.y));
    expect_pattern(&values(&other, x.view()), 1);
    expect(&values(&other, y.view()), LEN, 1, 0);
    expect(&buffers.synchronize_pinned(old.back).unwrap(), LEN, 1, 0);
}

fn launches_before_an_update_do_what_the_graph_did_then(target: Target) {
    let (device, stream) = open(target);
    let mut seen = filled(&stream, LEN, 9);
    let describe = |nodes: &mut GraphBuilder, x: BufKey<u32>, seed| {
        spin(HOLD_NS).node(nodes);
        let args = (x.view_mut(), LEN as u64, seed);
        nodes.launch(&FILL, Grid::cover(LEN, 64), args).unwrap();
    };
    let mut nodes = device.graph();
    let x = nodes.own(stream.alloc_zeroed::<u32>(LEN).unwrap()).unwrap();
    describe(&mut nodes, x, 0);
    let mut graph = nodes.build().unwrap();
    for seed in 0..10 {
        graph.launch(&stream).unwrap();
        let copied = stream.memcpy_d2d(graph.view(x), seen.view_mut());
        copied.unwrap();
        let mut nodes = graph.edit().unwrap();
        describe(&mut nodes, x, seed + 1);
        graph.update(nodes).unwrap();
        graph.launch(&stream).unwrap();
        expect_pattern(&values(&stream, seen.view()), seed);
        expect_pattern(&values(&stream, graph.view(x)), seed + 1);
    }
}

/// Adds nodes of another shape.
type Other = fn(&mut GraphBuilder, Keys);

fn another_shape_is_refused_and_the_old_graph_still_runs(target: Target) {
    let (device, stream) = open(target);
    let (mut graph, keys) = built(&device, &stream);
    let others: [Other; 3] = [
        // One more node.
        |nodes, keys| {
            describe(nodes, keys, LEN, 2);
            nodes.memset(keys.x.view_mut(), 0).unwrap();
        },
        // Fewer nodes.
        |nodes, keys| _ = nodes.memset(keys.x.view_mut(), 0).unwrap(),
        // As many nodes of other kinds.
        |nodes, keys| {
            for _ in 0..4 {
                nodes.memset(keys.x.view_mut(), 0).unwrap();
            }
        },
    ];
    for other in others {
        let mut nodes = device.graph();
        let keys_of_other = own(&device, &stream, &mut nodes);
        other(&mut nodes, keys_of_other);
        let refused = graph.update(nodes).unwrap_err();
        expect_other_shape(&refused.error);
        stream.memset(graph.view_mut(keys.y), 0).unwrap();
        graph.launch(&stream).unwrap();
        expect(graph.synchronize_pinned(keys.back).unwrap(), LEN, 1, 0);
        // The refused description is intact, and can be built as a graph of its own.
        let mut fresh = refused.value.unwrap().build().unwrap();
        fresh.launch(&stream).unwrap();
        assert_eq!(values(&stream, fresh.view(keys_of_other.x)), [0; LEN]);
    }
    // The graph can still be updated.
    let mut nodes = graph.edit().unwrap();
    describe(&mut nodes, keys, LEN, 7);
    graph.update(nodes).unwrap();
    graph.launch(&stream).unwrap();
    expect(graph.synchronize_pinned(keys.back).unwrap(), LEN, 7, 0);
}

fn an_edited_graph_of_another_shape_can_be_built(target: Target) {
    let (device, stream) = open(target);
    let (mut graph, keys) = built(&device, &stream);
    graph.launch(&stream).unwrap();
    let mut nodes = graph.edit().unwrap();
    let twice = graph.edit();
    assert!(matches!(twice, Err(Error::Invalid { .. })), "{twice:?}");
    describe(&mut nodes, keys, LEN, 2);
    nodes.fill_with(keys.x.slice_mut(..1), 77).unwrap();
    let refused = graph.update(nodes).unwrap_err();
    expect_other_shape(&refused.error);
    // The graph's memory belongs to the description.
    let launched = graph.launch(&stream);
    assert!(
        matches!(launched, Err(Error::Invalid { .. })),
        "{launched:?}"
    );
    let mut other = refused.value.unwrap().build().unwrap();
    other.launch(&stream).unwrap();
    expect(other.synchronize_pinned(keys.back).unwrap(), LEN, 2, 0);
    let x = values(&stream, other.view(keys.x));
    assert_eq!((x[0], x[1]), (77, pattern(1, 2)));
}

fn a_capture_updates_a_graph_of_its_shape_only(target: Target) {
    let device = target.open();
    let s = untracked::stream(&device, "s");
    let [x, y, z] = [1, 2, 3].map(|seed| untracked::filled(&device, seed));
    let capture = |written: &DeviceMemory, seed: u32, copies: usize| {
        s.begin_capture().unwrap();
        // SAFETY: one stream uses the memory, which is not freed until the device was waited for.
        unsafe {
            fill_explicit(&s, written.all(), seed);
            for _ in 0..copies {
                s.memcpy(written.all(), y.all()).unwrap();
            }
        }
    };
    let refused = |result: Result<()>| expect_other_shape(&result.unwrap_err());
    capture(&x, 4, 1);
    let mut graph = s.end_capture().unwrap();
    launch(&s, &graph);
    expect_device(&device, &y, 4);

    capture(&z, 5, 1);
    let updated = s.end_capture_into(&mut graph);
    // The stand-in does not know the shape of a capture.
    let (seed, x_has, z_has) = match target {
        Target::StandIn => {
            refused(updated);
            (4, 4, 3)
        }
        Target::Sim | Target::Cuda => {
            updated.unwrap();
            (5, 4, 5)
        }
    };
    launch(&s, &graph);
    expect_device(&device, &y, seed);
    expect_device(&device, &x, x_has);
    expect_device(&device, &z, z_has);

    capture(&x, 6, 2);
    refused(s.end_capture_into(&mut graph));
    // The capture is gone, and has not run.
    assert!(s.query().unwrap());
    expect_device(&device, &x, x_has);
    // SAFETY: see above.
    unsafe { fill_explicit(&s, y.all(), 7) };
    expect_device(&device, &y, 7);
    launch(&s, &graph);
    expect_device(&device, &y, seed);
    capture(&x, 8, 2);
    let other = s.end_capture().unwrap();
    launch(&s, &other);
    expect_device(&device, &y, 8);
}

fn launch(stream: &Explicit, graph: &Captured) {
    // SAFETY: the order is that of the stream, and the memory is not freed until the device was waited for.
    unsafe { stream.launch_graph(graph) }.unwrap();
}

fn each_device_updates_its_own_graphs(target: Target) {
    let devices = target.open_two();
    let streams = devices.each_ref().map(|device| device.stream("s").unwrap());
    let mut graphs = [0, 1].map(|at: usize| built(&devices[at], &streams[at]));
    for round in 1..4 {
        for ((graph, keys), stream) in graphs.iter_mut().zip(&streams) {
            let mut nodes = graph.edit().unwrap();
            describe(&mut nodes, *keys, LEN, 10 * round);
            graph.update(nodes).unwrap();
            graph.launch(stream).unwrap();
        }
        for (graph, keys) in &mut graphs {
            let found = graph.synchronize_pinned(keys.back).unwrap();
            expect(found, LEN, 10 * round, 0);
        }
    }
    let mut nodes = devices[1].graph();
    let keys = own(&devices[1], &streams[1], &mut nodes);
    describe(&mut nodes, keys, LEN, 3);
    let refused = graphs[0].0.update(nodes).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    let (graph, keys) = &mut graphs[0];
    graph.launch(&streams[0]).unwrap();
    expect(graph.synchronize_pinned(keys.back).unwrap(), LEN, 30, 0);
}
