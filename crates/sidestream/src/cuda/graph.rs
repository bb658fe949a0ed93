//! Executable graphs, from nodes and from captures.
//!
//! A small copy over the link becomes a kernel that accesses host memory. The copy engines take longer to start than
//! such a copy lasts, and a stream needs some 3.7 µs to change from one engine to the next: 32 batches of 64 KiB, each
//! copied in, computed and copied out by a graph in one of six slots, take 0.26 ms with copies and 0.15 ms with
//! kernels. At 256 KiB or more the engines are faster (0.32 and 0.38 ms; H200, 2026-11-22).

use std::ffi::c_void;

use super::driver::{
    Code as Answer, CuContext, CuFunction, CuGraph, CuGraphExec, CuNode, Driver, KernelNode,
    MEMORY_UNIFIED, Memcpy3d, MemsetNode, SUCCESS, UpdateResult,
};
use super::gather;
use super::launch::{Loaded, Params, allow_shared, of_launch};
use crate::backend::{Arg, Code, Copy, Fill, Grid, Node, NodeWork};
use crate::error::{Error, Result};
use crate::op::{Kind, Memory, Op};

/// A graph under construction, destroyed on drop.
pub(super) struct Building<'a> {
    driver: &'a Driver,
    graph: CuGraph,
}

impl<'a> Building<'a> {
    pub(super) fn new(driver: &'a Driver) -> Result<Building<'a>> {
        let mut graph = 0;
        // SAFETY: writes one handle.
        driver.done("graph", unsafe { (driver.cuGraphCreate)(&mut graph, 0) })?;
        Ok(Building { driver, graph })
    }

    /// Wraps a graph from a capture.
    pub(super) fn captured(driver: &'a Driver, graph: CuGraph) -> Building<'a> {
        Building { driver, graph }
    }

    /// Adds nodes, each depending on earlier ones. `load` loads a kernel, `piece` is the kernel that makes small
    /// copies; the device's context is current.
    pub(super) fn add(
        &self,
        nodes: &[Node],
        context: CuContext,
        piece: &Code,
        mut load: impl FnMut(&Code) -> Result<Loaded>,
    ) -> Result<()> {
        let mut made: Vec<CuNode> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let before = node.after.iter().map(|&at| made.get(at as usize).copied());
            let before: Option<Vec<CuNode>> = before.collect();
            let before = before.ok_or_else(|| Error::Invalid {
                call: "graph",
                why: "a node depends on a later one; name earlier nodes only".into(),
            })?;
            let mut handle = 0;
            let answer = match &node.work {
                NodeWork::Launch { code, grid, args } => {
                    let function = load(code)?.function;
                    let mut params = Params::NONE;
                    match allow_shared(self.driver, function, grid) {
                        SUCCESS => {
                            self.kernel(&mut handle, &before, function, grid, params.of(args))
                        }
                        refused => refused,
                    }
                }
                NodeWork::Copy(copy) if is_small(&node.op, copy) => {
                    let words = [copy.from.0, copy.to.0, copy.row_bytes];
                    let mut params = Params::NONE;
                    let pointers = params.of(&words.map(Arg::word));
                    let (function, grid) = (load(piece)?.function, gather::grid(&[*copy]));
                    self.kernel(&mut handle, &before, function, &grid, pointers)
                }
                NodeWork::Copy(copy) => self.copy(&mut handle, &before, copy, context),
                NodeWork::Fill(fill) => self.fill(&mut handle, &before, fill, context),
            };
            let added = self.driver.done("graph", answer);
            added.map_err(|error| match &node.work {
                NodeWork::Launch { code, grid, .. } => of_launch(error, code, grid),
                _ => error,
            })?;
            made.push(handle);
        }
        Ok(())
    }

    /// Adds a kernel node. `params` are pointers to the arguments of the function's signature.
    fn kernel(
        &self,
        handle: &mut CuNode,
        before: &[CuNode],
        function: CuFunction,
        grid: &Grid,
        params: *mut *mut c_void,
    ) -> Answer {
        let kernel = KernelNode {
            function,
            grid: grid.blocks,
            block: grid.threads,
            shared_bytes: grid.shared_bytes,
            params,
            extra: std::ptr::null_mut(),
            kernel: 0,
            context: 0,
        };
        // SAFETY: the function is loaded in the context of the device; the arguments match its signature, as the
        // front end promises, and are valid until the call returns: the driver copies them.
        unsafe {
            (self.driver.cuGraphAddKernelNode_v2)(
                handle,
                self.graph,
                before.as_ptr(),
                before.len(),
                &kernel,
            )
        }
    }

    fn copy(&self, handle: &mut CuNode, before: &[CuNode], copy: &Copy, at: CuContext) -> Answer {
        let params = Memcpy3d {
            src_type: MEMORY_UNIFIED,
            src_device: copy.from.0,
            src_pitch: copy.from_pitch as usize,
            src_height: copy.rows as usize,
            dst_type: MEMORY_UNIFIED,
            dst_device: copy.to.0,
            dst_pitch: copy.to_pitch as usize,
            dst_height: copy.rows as usize,
            width_bytes: copy.row_bytes as usize,
            height: copy.rows as usize,
            depth: 1,
            ..Memcpy3d::default()
        };
        // SAFETY: the nodes belong to this graph, and the front end promises that the memory exists as long as the
        // graph.
        unsafe {
            (self.driver.cuGraphAddMemcpyNode)(
                handle,
                self.graph,
                before.as_ptr(),
                before.len(),
                &params,
                at,
            )
        }
    }

    fn fill(&self, handle: &mut CuNode, before: &[CuNode], fill: &Fill, at: CuContext) -> Answer {
        let params = MemsetNode {
            dst: fill.at.0,
            pitch: 0,
            value: fill.value,
            element_bytes: fill.width.into(),
            width: fill.count as usize,
            height: 1,
        };
        // SAFETY: as in `copy`.
        unsafe {
            (self.driver.cuGraphAddMemsetNode)(
                handle,
                self.graph,
                before.as_ptr(),
                before.len(),
                &params,
                at,
            )
        }
    }

    /// Updates an executable graph to this one; its next launch uses the new nodes.
    ///
    /// # Errors
    /// If the two differ in more than the parameters of their nodes.
    pub(super) fn update(self, executable: CuGraphExec) -> Result<()> {
        let mut outcome = UpdateResult::default();
        // SAFETY: the graph is complete and the executable one was created here; one struct is written.
        let answer =
            unsafe { (self.driver.cuGraphExecUpdate_v2)(executable, self.graph, &mut outcome) };
        match answer {
            CANNOT_UPDATE => Err(Error::Refused {
                call: "graph update",
                code: CANNOT_UPDATE,
                why: format!(
                    "{}; describe the same nodes with the same dependencies, or build another graph",
                    difference(outcome.result)
                ),
            }),
            answer => self.driver.done("graph update", answer),
        }
    }

    /// Instantiates the graph.
    pub(super) fn finish(self) -> Result<CuGraphExec> {
        let mut executable = 0;
        // SAFETY: the graph is complete; one handle is written.
        let answer =
            unsafe { (self.driver.cuGraphInstantiateWithFlags)(&mut executable, self.graph, 0) };
        self.driver.done("graph", answer)?;
        Ok(executable)
    }
}

/// Copies of at most this many bytes are made by a kernel.
const SMALL_BYTES: u64 = 128 << 10;

/// Whether a kernel makes the copy.
fn is_small(op: &Op, copy: &Copy) -> bool {
    let Kind::Copy { from, to, .. } = op.kind else {
        return false;
    };
    let is_over_the_link = matches!(
        (from, to),
        (Memory::Pinned, Memory::Device) | (Memory::Device, Memory::Pinned)
    );
    is_over_the_link && copy.rows == 1 && copy.row_bytes <= SMALL_BYTES
}

/// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`.
const CANNOT_UPDATE: Answer = 910;

/// Describes a `CUgraphExecUpdateResult` in words.
fn difference(result: i32) -> &'static str {
    match result {
        2 => "there are more or fewer nodes, or they have other dependencies",
        3 => "a node has another kind (a copy may change its kind at 128 KiB)",
        4 | 7 => "the function of a kernel node cannot be exchanged for this one",
        5 => "the parameters of a node cannot be exchanged for these, such as the memory of a copy",
        6 | 8 => "the driver cannot update such a node",
        _ => "the driver cannot update the graph",
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        // SAFETY: the graph was created here; executable graphs that were instantiated from it are independent of it.
        let _: Answer = unsafe { (self.driver.cuGraphDestroy)(self.graph) };
    }
}
