//! Graphs, built node by node.

use std::ffi::c_uint;

use sidestream::backend::Grid;
use sidestream::cuda::driver::{
    Code, CuContext, CuGraph, CuGraphExec, CuNode, CuStream, KernelNode, Memcpy3d, MemsetNode,
    UpdateResult,
};

use super::cupti::driver;
use crate::arguments::{Out, give, list, values};
use crate::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::state::{Here, State, anywhere, call};
use crate::{graph, memory, modules, pitched};

driver! {
    501 fn cuGraphCreate(graph: Out<CuGraph>, flags: c_uint) {
        anywhere(|state, _| match flags {
            0 => give(graph, || Ok(graph::create(state))),
            _ => Err(INVALID_VALUE),
        })
    }

    517 fn cuGraphDestroy(graph: CuGraph) {
        anywhere(|state, _| graph::destroy(state, graph))
    }

    689 fn cuGraphAddKernelNode_v2(
        node: Out<CuNode>,
        graph: CuGraph,
        after: *const CuNode,
        count: usize,
        kernel: Option<&KernelNode>,
    ) {
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
            let values = unsafe { values(kernel.params, &modules::params(state, function)?)? };
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

    504 fn cuGraphAddMemcpyNode(
        node: Out<CuNode>,
        graph: CuGraph,
        after: *const CuNode,
        count: usize,
        copy: Option<&Memcpy3d>,
        context: CuContext,
    ) {
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

    506 fn cuGraphAddMemsetNode(
        node: Out<CuNode>,
        graph: CuGraph,
        after: *const CuNode,
        count: usize,
        fill: Option<&MemsetNode>,
        context: CuContext,
    ) {
        // SAFETY: as the documentation of this crate requires.
        let after = unsafe { list(after, count) };
        anywhere(|state, here| {
            in_context(state, here, context)?;
            let fills = memory::fills(state, fill.ok_or(INVALID_VALUE)?)?;
            give(node, || graph::add_fills(state, (graph, after?), fills))
        })
    }

    643 fn cuGraphInstantiateWithFlags(exec: Out<CuGraphExec>, graph: CuGraph, _flags: u64) {
        call(|state, here| give(exec, || graph::instantiate(state, here, graph)))
    }

    696 fn cuGraphExecUpdate_v2(exec: CuGraphExec, graph: CuGraph, result: Out<UpdateResult>) {
        anywhere(|state, here| {
            let mut updated = Ok(());
            give(result, || {
                let (outcome, result) = graph::update(state, here, exec, graph);
                updated = outcome;
                Ok(result)
            })?;
            updated
        })
    }

    516 fn cuGraphExecDestroy(exec: CuGraphExec) {
        anywhere(|state, _| graph::destroy_exec(state, exec))
    }

    514 fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) {
        anywhere(|state, here| {
            graph::launch(state, here, exec, stream)
        })
    }
}

/// Returns the context that a node names, or the current one if it names none.
fn in_context(state: &State, here: Here, context: CuContext) -> Answer<Here> {
    let device = match context {
        0 => here.device()?,
        context => state.tables().device_of(context)?,
    };
    Ok(here.with(device))
}
