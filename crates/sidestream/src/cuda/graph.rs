//! Executable graphs, from nodes and from captures.

use super::driver::{
    Code as Answer, CuContext, CuGraph, CuGraphExec, CuNode, Driver, KernelNode, MEMORY_UNIFIED,
    Memcpy3d, MemsetNode,
};
use super::launch::{Loaded, Params, allow_shared};
use crate::backend::{Code, Copy, Fill, Node, NodeWork};
use crate::error::{Error, Result};

/// A graph under construction; it is destroyed when it goes.
pub(super) struct Building<'a> {
    driver: &'a Driver,
    graph: CuGraph,
}

impl<'a> Building<'a> {
    pub fn new(driver: &'a Driver) -> Result<Building<'a>> {
        let mut graph = 0;
        // SAFETY: writes one handle.
        driver.done("graph", unsafe { (driver.cuGraphCreate)(&mut graph, 0) })?;
        Ok(Building { driver, graph })
    }

    /// A graph that a capture has made.
    pub fn captured(driver: &'a Driver, graph: CuGraph) -> Building<'a> {
        Building { driver, graph }
    }

    /// Adds nodes, each behind earlier ones. `load` makes a kernel ready; the context is the device's.
    pub fn add(
        &self,
        nodes: &[Node],
        context: CuContext,
        mut load: impl FnMut(&Code) -> Result<Loaded>,
    ) -> Result<()> {
        let mut made: Vec<CuNode> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let before = node.after.iter().map(|&at| made.get(at as usize).copied());
            let before: Option<Vec<CuNode>> = before.collect();
            let before = before.ok_or_else(|| Error::Invalid {
                call: "graph",
                why: "a node stands behind a later one; name earlier nodes only".into(),
            })?;
            let mut handle = 0;
            let answer = match &node.work {
                NodeWork::Launch { code, grid, args } => {
                    let function = load(code)?.function;
                    let allowed = allow_shared(self.driver, function, grid);
                    self.driver.done("graph", allowed)?;
                    let mut params = Params::of(args);
                    let kernel = KernelNode {
                        function,
                        grid: grid.blocks,
                        block: grid.threads,
                        shared_bytes: grid.shared_bytes,
                        params: params.pointers(),
                        extra: std::ptr::null_mut(),
                        kernel: 0,
                        context: 0,
                    };
                    // SAFETY: the function is loaded in this context; its arguments lie in `params` and
                    // are those of its signature, as the front end promises; the driver copies them.
                    unsafe {
                        (self.driver.cuGraphAddKernelNode_v2)(
                            &mut handle,
                            self.graph,
                            before.as_ptr(),
                            before.len(),
                            &kernel,
                        )
                    }
                }
                NodeWork::Copy(copy) => self.copy(&mut handle, &before, copy, context),
                NodeWork::Fill(fill) => self.fill(&mut handle, &before, fill, context),
            };
            self.driver.done("graph", answer)?;
            made.push(handle);
        }
        Ok(())
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
        // SAFETY: the nodes are of this graph, and the front end promises that the memory is there
        // as long as the graph.
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

    /// Makes it executable.
    pub fn finish(self) -> Result<CuGraphExec> {
        let mut executable = 0;
        // SAFETY: the graph is complete; one handle is written.
        let answer =
            unsafe { (self.driver.cuGraphInstantiateWithFlags)(&mut executable, self.graph, 0) };
        self.driver.done("graph", answer)?;
        Ok(executable)
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        // SAFETY: it is ours; what was instantiated from it is independent of it.
        let _: Answer = unsafe { (self.driver.cuGraphDestroy)(self.graph) };
    }
}
