//! Captures, and the graphs that they become: what a replay touches, including the workspaces of cuBLAS.

use std::thread::ThreadId;

use sidestream::log::Record;
use sidestream::op::{Access, BufferId, GraphId, Kind, Memory, Mode, StreamId};

use super::spine::{Core, RawStream, Site};
use super::touch::{Touch, coalesce};

/// A capture in progress.
pub(super) struct Capture {
    key: u64,
    /// The thread whose calls are captured; `None` for those of all threads. CUDA captures by stream: in its
    /// thread-local modes, other threads work on other streams meanwhile, and in the global mode they must not.
    by: Option<ThreadId>,
    graph: Graph,
}

/// A captured graph: what a replay touches.
pub(super) struct Graph {
    id: u32,
    pub(super) touches: Vec<Touch>,
    /// The streams whose workspaces the graph's matrix products use.
    pub(super) workspaces: Vec<StreamId>,
}

impl Core {
    /// Whether a capture records this thread's calls.
    pub fn is_capturing(&self) -> bool {
        self.captured_here().is_some()
    }

    /// The index of the capture that records this thread's calls.
    fn captured_here(&self) -> Option<usize> {
        if self.captures.is_empty() {
            return None;
        }
        let here = std::thread::current().id();
        let captures = self.captures.iter();
        captures
            .map(|capture| capture.by)
            .position(|by| by.is_none_or(|by| by == here))
    }

    pub(super) fn captured_graph(&mut self) -> Option<&mut Graph> {
        let at = self.captured_here()?;
        Some(&mut self.captures[at].graph)
    }

    /// Begins a capture: until its end, calls are recorded and nothing runs. It records the calls of this thread, or
    /// of all threads.
    pub fn capture_begin(&mut self, key: u64, of_all_threads: bool) {
        let id = self.graph_count;
        self.graph_count += 1;
        let graph = Graph {
            id,
            touches: Vec::new(),
            workspaces: Vec::new(),
        };
        let by = (!of_all_threads).then(|| std::thread::current().id());
        self.captures.push(Capture { key, by, graph });
    }

    /// Ends the capture; a replay then repeats the calls that were made in it.
    pub fn capture_end(&mut self) {
        if let Some(at) = self.captured_here() {
            let Capture { key, mut graph, .. } = self.captures.remove(at);
            // From here on, other uses of these workspaces can race with the graph.
            for &stream in &graph.workspaces {
                self.workspace(stream);
            }
            coalesce(&mut graph.touches);
            self.graphs.insert(key, graph);
        }
    }

    /// Reports a graph launch: all that the graph touches, as one operation.
    pub fn replay(&mut self, site: Site, key: u64, stream: RawStream) -> bool {
        let Some(graph) = self.graphs.remove(&key) else {
            return false;
        };
        self.operations += 1;
        let id = GraphId(graph.id);
        let stream = self.stream(stream);
        self.device_may_write();
        self.put(&graph.touches, site);
        self.use_workspaces(&graph.workspaces);
        self.push(Kind::GraphLaunch { stream, graph: id }, site);
        self.launched_at(site, stream, true);
        self.graphs.insert(key, graph);
        self.found()
    }

    /// Adds the workspaces of these streams to the accesses of `self.op`.
    pub(super) fn use_workspaces(&mut self, of: &[StreamId]) {
        for &stream in of {
            let buffer = self.workspace(stream);
            self.op.accesses.push(Access {
                buffer,
                start: 0,
                end: 1,
                mode: Mode::Write,
            });
        }
    }

    fn workspace(&mut self, of: StreamId) -> BufferId {
        if let Some(&known) = self.workspaces.get(&of) {
            return known;
        }
        let buffer = self.space.next_buffer();
        let record = Record::buffer(Memory::Device, 1, None, "");
        self.sink.take(&record);
        self.workspaces.insert(of, buffer);
        buffer
    }

    /// The stream that owns this workspace.
    pub fn workspace_of(&self, buffer: BufferId) -> Option<StreamId> {
        let mut all = self.workspaces.iter();
        all.find(|(_, known)| **known == buffer)
            .map(|(&stream, _)| stream)
    }
}
