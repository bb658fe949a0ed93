//! Graphs, built node by node.

use std::ffi::c_uint;

use sidestream::backend::Grid;
use sidestream::cuda::driver::{
    Code, CuContext, CuGraph, CuGraphExec, CuNode, CuStream, KernelNode, Memcpy3d, MemsetNode,
    UpdateResult,
};

use crate::arguments::{Out, give, list, values};
use crate::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::failing::submits;
use crate::state::{Here, State, anywhere, call};
use crate::{graph, memory, modules, pitched};

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(graph: Out<CuGraph>, flags: c_uint) -> Code {
    anywhere(|state, _| match flags {
        0 => give(graph, || Ok(graph::create(state))),
        _ => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: CuGraph) -> Code {
    anywhere(|state, _| graph::destroy(state, graph))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    kernel: Option<&KernelNode>,
) -> Code {
    // SAFETY: as the documentation of this crate requires.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        let kernel = kernel.ok_or(INVALID_VALUE)?;
        if !kernel.extra.is_null() || kernel.kernel != 0 {
            return Err(NOT_SUPPORTED);
        }
        let at = in_context(state, here, kernel.context)?;
        let function = kernel.function;
        // SAFETY: as the documentation of this crate requires.
        let values = unsafe { values(kernel.params, modules::params(state, function)?)? };
        let grid = Grid {
            blocks: kernel.grid,
            threads: kernel.block,
            shared_bytes: kernel.shared_bytes,
        };
        let launch = (function, grid, &values[..]);
        give(node, || {
            graph::add_kernel(state, at, (graph, after?), launch)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddMemcpyNode(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    copy: Option<&Memcpy3d>,
    context: CuContext,
) -> Code {
    // SAFETY: as the documentation of this crate requires.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        in_context(state, here, context)?;
        let copies = pitched::solid(copy.ok_or(INVALID_VALUE)?)?;
        let placed = |copy| Ok((copy, memory::sides(&state.tables().memory, &copy)?));
        let copies: Answer<Vec<_>> = copies.into_iter().map(placed).collect();
        give(node, || graph::add_copies(state, (graph, after?), copies?))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddMemsetNode(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    fill: Option<&MemsetNode>,
    context: CuContext,
) -> Code {
    // SAFETY: as the documentation of this crate requires.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        in_context(state, here, context)?;
        let fills = memory::fills(state, fill.ok_or(INVALID_VALUE)?)?;
        give(node, || graph::add_fills(state, (graph, after?), fills))
    })
}

/// Returns the context that a node names, or the current one if it names none.
fn in_context(state: &State, here: Here, context: CuContext) -> Answer<Here> {
    let device = match context {
        0 => here.device()?,
        context => state.tables().device_of(context)?,
    };
    Ok(here.with(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(
    exec: Out<CuGraphExec>,
    graph: CuGraph,
    _flags: u64,
) -> Code {
    call(|state, here| give(exec, || graph::instantiate(state, here, graph)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecUpdate_v2(
    exec: CuGraphExec,
    graph: CuGraph,
    result: Out<UpdateResult>,
) -> Code {
    anywhere(|state, here| {
        let place = result.ok_or(INVALID_VALUE)?;
        let (updated, result) = graph::update(state, here, exec, graph);
        place.write(result);
        updated
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: CuGraphExec) -> Code {
    anywhere(|state, _| graph::destroy_exec(state, exec))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) -> Code {
    submits("cuGraphLaunch", |state, here| {
        graph::launch(state, here, exec, stream)
    })
}
