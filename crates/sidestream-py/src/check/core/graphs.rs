//! Captures, and the graphs that they become: what a replay touches, the workspaces of cuBLAS among it.

use std::thread::ThreadId;

use sidestream::log::Record;
use sidestream::op::{Access, BufferId, GraphId, Kind, Memory, Mode, StreamId};

use super::{Core, RawStream, Site};
use crate::check::touch::{Touch, coalesce};

/// A capture that is under way.
pub(super) struct Capture {
    key: u64,
    /// Whose calls it records; everybody's if none. CUDA goes by streams: in its modes for one thread others work on streams of
    /// their own meanwhile, and in the global mode they may not.
    by: Option<ThreadId>,
    graph: Graph,
}

/// A graph that was captured: what a replay touches.
pub(super) struct Graph {
    id: u32,
    pub(super) touches: Vec<Touch>,
    /// The streams whose workspaces its products use.
    pub(super) workspaces: Vec<StreamId>,
}

impl Core {
    /// Whether a capture records what is called.
    pub fn is_capturing(&self) -> bool {
        self.captured_here().is_some()
    }

    /// The capture that records what this thread calls.
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

    /// From here to the end of the capture nothing runs.
    /// It is what this thread calls that is recorded, or what all threads call.
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

    /// The capture has ended; a replay does what was called in it.
    pub fn capture_end(&mut self) {
        if let Some(at) = self.captured_here() {
            let Capture { key, mut graph, .. } = self.captures.remove(at);
            // From here on it matters who else uses them.
            for &stream in &graph.workspaces {
                self.workspace(stream);
            }
            coalesce(&mut graph.touches);
            self.graphs.insert(key, graph);
        }
    }

    /// A graph runs: all that it touches, at once.
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

    /// The stream whose workspace this is.
    pub fn workspace_of(&self, buffer: BufferId) -> Option<StreamId> {
        let mut all = self.workspaces.iter();
        all.find(|(_, known)| **known == buffer)
            .map(|(&stream, _)| stream)
    }
}
