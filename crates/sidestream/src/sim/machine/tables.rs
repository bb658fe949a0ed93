//! Maps the runtime's ids to streams, events and graphs of the rule book and lanes of the engine.
//!
//! The rule book never forgets a stream or an event. So the entries of destroyed ones are reused for new ones of
//! the same kind, once no work of the old ones is pending.

#![deny(clippy::wildcard_enum_match_arm)]

use super::graph::Graph;
use crate::engine::TaskId;
use crate::error::{Error, Result};
use crate::op::{Class, DeviceId, EventId, GraphId, Kind, Named, StreamId, StreamKind};

/// The tables, by id.
#[derive(Default)]
pub(super) struct Tables {
    streams: Vec<Option<Stream>>,
    events: Vec<Option<Event>>,
    graphs: Vec<Option<Graph>>,
    spare_streams: Vec<Stream>,
    spare_events: Vec<Event>,
    spare_graphs: Vec<Graph>,
}

/// A stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stream {
    /// Its id in the rule book.
    pub ordered: StreamId,
    pub device: DeviceId,
    pub kind: StreamKind,
    pub priority: i32,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Its id in the rule book.
    pub ordered: EventId,
    pub device: DeviceId,
    pub timing: bool,
    /// The task of its last record.
    pub record: Option<TaskId>,
    pub at_ns: Option<u64>,
}

// ------------------------------------------------------------------ ids

impl Tables {
    pub(super) fn stream(&self, id: StreamId) -> Result<&Stream> {
        find(&self.streams, id.0).ok_or_else(|| unknown("stream", id.0))
    }

    pub(super) fn event(&self, id: EventId) -> Result<&Event> {
        find(&self.events, id.0).ok_or_else(|| unknown("event", id.0))
    }

    pub(super) fn graph(&self, id: GraphId) -> Result<&Graph> {
        find(&self.graphs, id.0).ok_or_else(|| unknown("graph", id.0))
    }

    pub(super) fn take_graph(&mut self, id: GraphId) -> Option<Graph> {
        take(&mut self.graphs, id.0)
    }

    pub(super) fn set_stream(&mut self, id: StreamId, stream: Stream) {
        *grow(&mut self.streams, id.0) = Some(stream);
    }

    pub(super) fn set_event(&mut self, id: EventId, event: Event) {
        *grow(&mut self.events, id.0) = Some(event);
    }

    pub(super) fn set_graph(&mut self, id: GraphId, graph: Graph) {
        *grow(&mut self.graphs, id.0) = Some(graph);
    }

    /// Removes a destroyed stream.
    pub(super) fn retire_stream(&mut self, id: StreamId) {
        let stream = take(&mut self.streams, id.0);
        // The legacy stream of a device is never destroyed.
        self.spare_streams
            .extend(stream.filter(|stream| stream.kind != StreamKind::Legacy));
    }

    /// Removes a destroyed event. Pending waits for it refer to its record already (R12).
    pub(super) fn retire_event(&mut self, id: EventId) {
        self.spare_events.extend(take(&mut self.events, id.0));
    }

    /// Removes a destroyed graph; returns its effects, which hold values of the program.
    pub(super) fn retire_graph(&mut self, id: GraphId) -> Vec<super::command::Effect> {
        let Some(mut graph) = take(&mut self.graphs, id.0) else {
            return Vec::new();
        };
        let effects = graph.nodes.drain(..).map(|node| node.effect).collect();
        self.spare_graphs.push(graph);
        effects
    }

    /// Removes and returns a destroyed stream of this kind without pending work.
    pub(super) fn spare_stream(&mut self, fits: impl Fn(&Stream) -> bool) -> Option<Stream> {
        let at = self.spare_streams.iter().position(fits)?;
        Some(self.spare_streams.swap_remove(at))
    }

    /// Removes and returns a destroyed event of this kind.
    pub(super) fn spare_event(&mut self, device: DeviceId, timing: bool) -> Option<Event> {
        let mut spare = self.spare_events.iter();
        let at = spare.position(|event| (event.device, event.timing) == (device, timing))?;
        Some(self.spare_events.swap_remove(at))
    }

    /// Removes and returns a destroyed graph of this device without pending launches.
    pub(super) fn spare_graph(&mut self, fits: impl Fn(&Graph) -> bool) -> Option<Graph> {
        let at = self.spare_graphs.iter().position(fits)?;
        Some(self.spare_graphs.swap_remove(at))
    }

    /// Returns the number of graphs declared in the rule book.
    pub(super) fn graphs_so_far(&self) -> usize {
        self.graphs.iter().flatten().count() + self.spare_graphs.len()
    }

    /// Sets the last record of an event.
    pub(super) fn recorded(&mut self, id: EventId, task: TaskId) {
        if let Some(Some(event)) = self.events.get_mut(id.0 as usize) {
            (event.record, event.at_ns) = (Some(task), None);
        }
    }

    /// Sets the time of a record that has completed. If the event was destroyed or recorded again, the time is not
    /// needed.
    pub(super) fn complete(&mut self, id: EventId, task: TaskId, now_ns: u64) {
        if let Some(Some(event)) = self.events.get_mut(id.0 as usize)
            && event.record == Some(task)
        {
            event.at_ns = Some(now_ns);
        }
    }

    /// Returns a call with the ids of the rule book; `None` if the call does not concern the rule book.
    pub(super) fn ordered(&self, kind: &Kind) -> Result<Option<Kind>> {
        if let Class::HostAccess | Class::Allocator | Class::Malloc | Class::Free | Class::Make =
            kind.class()
        {
            return Ok(None);
        }
        let mut kind = *kind;
        kind.each_named::<Error>(|named| {
            match named {
                Named::Stream(id) => *id = self.stream(*id)?.ordered,
                Named::Event(id) => *id = self.event(*id)?.ordered,
                Named::Graph(id) => *id = self.graph(*id)?.ordered,
                Named::Buffer(_) | Named::Flag(_) | Named::Device(_) => {}
            }
            Ok(())
        })?;
        Ok(Some(kind))
    }
}

fn grow<T>(table: &mut Vec<Option<T>>, id: u32) -> &mut Option<T> {
    let at = id as usize;
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    &mut table[at]
}

fn find<T>(table: &[Option<T>], id: u32) -> Option<&T> {
    table.get(id as usize)?.as_ref()
}

fn take<T>(table: &mut [Option<T>], id: u32) -> Option<T> {
    table.get_mut(id as usize)?.take()
}

/// CUDA's `cudaErrorInvalidResourceHandle`.
fn unknown(what: &'static str, id: u32) -> Error {
    Error::Refused {
        call: what,
        code: 400,
        why: format!("there is no {what} {id}; it was never created, or was destroyed"),
    }
}
