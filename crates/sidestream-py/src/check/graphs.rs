//! Captures, and the graphs that they become: what a replay touches, including the workspaces of cuBLAS.

use std::collections::HashMap;
use std::thread::ThreadId;

use sidestream::log::Record;
use sidestream::op::{Access, BufferId, GraphId, Kind, Memory, Mode, StreamId};

use super::spine::{Core, Site};
use super::streams::RawStream;
use super::touch::{Touch, coalesce};

/// The captures and graphs, and the workspaces that graphs share with other calls.
#[derive(Default)]
pub struct Graphs {
    captures: Vec<Capture>,
    known: HashMap<u64, Graph>,
    /// The number of captures so far.
    count: u32,
    /// cuBLAS has one workspace per stream. A captured matrix product keeps the workspace of the stream on which it
    /// was captured, wherever its graph runs.
    workspaces: HashMap<StreamId, BufferId>,
}

/// A capture in progress.
struct Capture {
    key: u64,
    /// The thread whose calls are captured; `None` for those of all threads. CUDA captures by stream: in its
    /// thread-local modes, other threads work on other streams meanwhile, and in the global mode they must not.
    by: Option<ThreadId>,
    graph: Graph,
}

/// A captured graph: what a replay touches.
struct Graph {
    id: u32,
    touches: Vec<Touch>,
    /// The streams whose workspaces the graph's matrix products use.
    workspaces: Vec<StreamId>,
}

impl Graphs {
    /// The index of the capture that records this thread's calls.
    fn capture(&self) -> Option<usize> {
        if self.captures.is_empty() {
            return None;
        }
        let here = std::thread::current().id();
        let mut captures = self.captures.iter();
        captures.position(|capture| capture.by.is_none_or(|by| by == here))
    }

    /// Keeps what an operator touches if a capture records it, and the stream whose workspace it uses.
    pub fn captured(&mut self, touches: &[Touch], workspace: Option<StreamId>) -> bool {
        let Some(at) = self.capture() else {
            return false;
        };
        let graph = &mut self.captures[at].graph;
        let on_device = touches.iter().filter(|touch| touch.device >= 0);
        graph.touches.extend(on_device.cloned());
        if let Some(stream) = workspace.filter(|stream| !graph.workspaces.contains(stream)) {
            graph.workspaces.push(stream);
        }
        true
    }

    /// Whether a graph uses the workspace of this stream. Otherwise only the stream itself uses it.
    pub fn are_shared(&self, workspace: StreamId) -> bool {
        self.workspaces.contains_key(&workspace)
    }

    /// The stream that owns this workspace.
    pub fn workspace_of(&self, buffer: BufferId) -> Option<StreamId> {
        let mut all = self.workspaces.iter();
        all.find(|(_, known)| **known == buffer)
            .map(|(&stream, _)| stream)
    }
}

impl Core {
    /// Whether a capture records this thread's calls.
    pub fn is_capturing(&self) -> bool {
        self.graphs.capture().is_some()
    }

    /// Begins a capture: until its end, calls are recorded and nothing runs. It records the calls of this thread, or
    /// of all threads.
    pub fn capture_begin(&mut self, key: u64, of_all_threads: bool) {
        let graph = Graph {
            id: self.graphs.count,
            touches: Vec::new(),
            workspaces: Vec::new(),
        };
        self.graphs.count += 1;
        let by = (!of_all_threads).then(|| std::thread::current().id());
        self.graphs.captures.push(Capture { key, by, graph });
    }

    /// Ends the capture; a replay then repeats the calls that were made in it.
    pub fn capture_end(&mut self) {
        if let Some(at) = self.graphs.capture() {
            let Capture { key, mut graph, .. } = self.graphs.captures.remove(at);
            // From here on, other uses of these workspaces can race with the graph.
            for &stream in &graph.workspaces {
                self.workspace(stream);
            }
            coalesce(&mut graph.touches);
            self.graphs.known.insert(key, graph);
        }
    }

    /// Reports a graph launch: all that the graph touches, as one operation.
    pub fn replay(&mut self, site: Site, key: u64, stream: RawStream) -> bool {
        let Some(graph) = self.graphs.known.remove(&key) else {
            return false;
        };
        self.operations += 1;
        let id = GraphId(graph.id);
        let stream = self.stream(stream);
        // The host bytes that the graph writes are unknown.
        self.host.watch.drop_kept(0, u64::MAX);
        self.put(&graph.touches, site);
        self.use_workspaces(&graph.workspaces);
        self.push(Kind::GraphLaunch { stream, graph: id }, site);
        self.graphs.known.insert(key, graph);
        self.found()
    }

    /// Adds the workspaces of these streams to the accesses of the next operation.
    pub(super) fn use_workspaces(&mut self, of: &[StreamId]) {
        for &stream in of {
            let buffer = self.workspace(stream);
            self.feed.op.accesses.push(Access {
                buffer,
                start: 0,
                end: 1,
                mode: Mode::Write,
            });
        }
    }

    fn workspace(&mut self, of: StreamId) -> BufferId {
        *self.graphs.workspaces.entry(of).or_insert_with(|| {
            let record = Record::buffer(Memory::Device, 1, None, "");
            self.feed.sink.take(&record);
            self.space.next_buffer()
        })
    }
}
