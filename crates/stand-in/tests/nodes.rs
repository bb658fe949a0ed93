//! Graphs that are built node by node.

mod rig;

use std::ffi::c_void;

use rig::*;
use sidestream::cuda::driver::{
    CuGraph, CuNode, KernelNode, MEMORY_UNIFIED, Memcpy2d, Memcpy3d, MemsetNode, UpdateResult,
};

/// Returns a copy of some bytes, as a node describes it.
fn bytes(to: u64, from: u64, width_bytes: usize) -> Memcpy3d {
    Memcpy3d {
        src_type: MEMORY_UNIFIED,
        src_device: from,
        dst_type: MEMORY_UNIFIED,
        dst_device: to,
        width_bytes,
        height: 1,
        depth: 1,
        ..Memcpy3d::default()
    }
}

/// Returns the graph upload -> kernel (sum = x + x) -> download; the nodes are added in this order.
fn chain(rig: &Rig, add: u64, [from, x, sum, to]: [u64; 4]) -> CuGraph {
    let (mut graph, mut node): (CuGraph, CuNode) = (0, 0);
    let d = rig.driver;
    let mut values = [x, x, sum, 16];
    let mut params = values
        .each_mut()
        .map(|value| (value as *mut u64).cast::<c_void>());
    let kernel = KernelNode {
        function: add,
        grid: [1; 3],
        block: [16, 1, 1],
        shared_bytes: 0,
        params: params.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kernel: 0,
        context: 0,
    };
    let (up, down) = (bytes(x, from, 64), bytes(to, sum, 64));
    let context = rig.contexts[0];
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuGraphCreate)(&mut graph, 0));
        let none = std::ptr::null();
        ok((d.cuGraphAddMemcpyNode)(
            &mut node, graph, none, 0, &up, context,
        ));
        let after = node;
        ok((d.cuGraphAddKernelNode_v2)(
            &mut node, graph, &after, 1, &kernel,
        ));
        let after = node;
        ok((d.cuGraphAddMemcpyNode)(
            &mut node, graph, &after, 1, &down, context,
        ));
    }
    graph
}

#[test]
fn a_graph_of_nodes_runs_and_can_be_updated() {
    let rig = Rig::new();
    let d = rig.driver;
    let add = rig.function(&VECTOR_ADD, c"vector_add");
    let stream = rig.stream();
    let (one, _) = rig.pinned(&[1f32; 16]);
    let (two, _) = rig.pinned(&[2f32; 16]);
    let (to, seen) = rig.pinned(&[0f32; 16]);
    let (x, sum) = (rig.memory(64), rig.memory(64));
    let mut exec = 0;
    let mut result = UpdateResult::default();
    // SAFETY: the pointers are to local variables; `seen` is read when no work writes it.
    unsafe {
        let graph = chain(&rig, add, [one, x, sum, to]);
        ok((d.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        ok((d.cuGraphLaunch)(exec, stream));
        ok(rig.synchronize(stream));
        assert_eq!(seen.add(15).read(), 2.0);
        // The launch before the update still reads its original source.
        ok((d.cuGraphLaunch)(exec, stream));
        let other = chain(&rig, add, [two, x, sum, to]);
        ok((d.cuGraphExecUpdate_v2)(exec, other, &mut result));
        assert_eq!(result.result, 0);
        ok((d.cuGraphLaunch)(exec, stream));
        ok(rig.synchronize(stream));
        assert_eq!(seen.add(15).read(), 4.0);

        // An update to a graph with one node less is refused, and changes nothing.
        let (mut short, mut node) = (0, 0);
        ok((d.cuGraphCreate)(&mut short, 0));
        let copy = bytes(to, one, 64);
        let none = std::ptr::null();
        ok((d.cuGraphAddMemcpyNode)(
            &mut node, short, none, 0, &copy, 0,
        ));
        assert_eq!((d.cuGraphExecUpdate_v2)(exec, short, &mut result), 910);
        assert_ne!(result.result, 0);
        ok((d.cuGraphLaunch)(exec, stream));
        ok(rig.synchronize(stream));
        assert_eq!(seen.read(), 4.0);

        // A node of another graph, and one of no graph.
        assert_eq!(
            (d.cuGraphAddMemcpyNode)(&mut node, other, &node.clone(), 1, &copy, 0),
            1
        );
        let foreign = 5;
        assert_eq!(
            (d.cuGraphAddMemcpyNode)(&mut node, other, &foreign, 1, &copy, 0),
            400
        );
        for graph in [graph, other, short] {
            ok((d.cuGraphDestroy)(graph));
            assert_eq!((d.cuGraphDestroy)(graph), 400);
        }
    }
}

#[test]
fn pitched_copies_and_fills_touch_their_rows_only() {
    let rig = Rig::new();
    let d = rig.driver;
    let stream = rig.stream();
    let from: Vec<u8> = (0..120).collect();
    let (from, _) = rig.pinned(&from);
    let at = rig.memory(64);
    // 3 bytes from each of 2 rows of 10, two slices of 4 rows each, starting at row 1 of slice 1.
    let solid = Memcpy3d {
        src_type: MEMORY_UNIFIED,
        src_device: from,
        src_x_bytes: 2,
        src_y: 1,
        src_z: 1,
        src_pitch: 10,
        src_height: 4,
        dst_type: MEMORY_UNIFIED,
        dst_device: at,
        dst_pitch: 4,
        dst_height: 2,
        width_bytes: 3,
        height: 2,
        depth: 2,
        ..Memcpy3d::default()
    };
    let fill = MemsetNode {
        dst: at + 32,
        pitch: 8,
        value: 0x0201,
        element_bytes: 2,
        width: 2,
        height: 2,
    };
    let (mut graph, mut node, mut exec) = (0, 0, 0);
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuMemsetD8Async)(at, 255, 64, stream));
        ok((d.cuGraphCreate)(&mut graph, 0));
        let none = std::ptr::null();
        ok((d.cuGraphAddMemcpyNode)(
            &mut node, graph, none, 0, &solid, 0,
        ));
        let after = node;
        ok((d.cuGraphAddMemsetNode)(
            &mut node, graph, &after, 1, &fill, 0,
        ));
        ok((d.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        ok((d.cuGraphLaunch)(exec, stream));
    }
    let got: Vec<u8> = rig.read(at, 48, stream);
    assert_eq!(got[..8], [52, 53, 54, 255, 62, 63, 64, 255]);
    assert_eq!(got[8..16], [92, 93, 94, 255, 102, 103, 104, 255]);
    assert_eq!(got[16..32], [255; 16]);
    assert_eq!(
        got[32..],
        [
            1, 2, 1, 2, 255, 255, 255, 255, 1, 2, 1, 2, 255, 255, 255, 255
        ]
    );

    let mut plane = Memcpy2d {
        src_type: MEMORY_UNIFIED,
        src_device: from,
        src_y: 3,
        src_pitch: 10,
        dst_type: MEMORY_UNIFIED,
        dst_device: at,
        dst_x_bytes: 1,
        dst_pitch: 20,
        width_bytes: 2,
        height: 3,
        ..Memcpy2d::default()
    };
    // SAFETY: the pointers are to local variables.
    unsafe { ok((d.cuMemcpy2DAsync_v2)(&plane, stream)) };
    let got: Vec<u8> = rig.read(at, 64, stream);
    assert_eq!(got[..4], [52, 30, 31, 255]);
    assert_eq!((got[21], got[22], got[41], got[42]), (40, 41, 50, 51));
    // Beyond the memory, and rows that overlap.
    plane.height = 5;
    // SAFETY: as above.
    assert_eq!(unsafe { (d.cuMemcpy2DAsync_v2)(&plane, stream) }, 1);
    (plane.height, plane.dst_pitch) = (2, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { (d.cuMemcpy2DAsync_v2)(&plane, stream) }, 1);
}
