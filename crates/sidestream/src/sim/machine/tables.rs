//! Maps the runtime's ids to streams, events and graphs of the rule book and lanes of the engine.
//!
//! The rule book never forgets a stream or an event. So the entries of destroyed ones are reused for new ones of
//! the same kind, once no work of the old ones is pending.

#![deny(clippy::wildcard_enum_match_arm)]

use super::command::Effect;
use super::graph::Graph;
use crate::engine::TaskId;
use crate::error::{Error, Result};
use crate::op::{Class, DeviceId, EventId, GraphId, Kind, Named, StreamId, StreamKind};
use crate::sim::core::grow;

/// The tables.
#[derive(Default)]
pub(super) struct Tables {
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub graphs: Table<Graph>,
}

/// All streams, events or graphs.
pub(super) struct Table<T> {
    /// The existing ones, by id.
    known: Vec<Option<T>>,
    /// The destroyed ones.
    spare: Vec<T>,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
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

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            known: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    pub(super) fn set(&mut self, id: u32, it: T) {
        *grow(&mut self.known, id) = Some(it);
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        self.known.get_mut(id as usize)?.take()
    }

    /// Removes and returns a destroyed one that fits.
    pub(super) fn reuse(&mut self, fits: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.spare.iter().position(fits)?;
        Some(self.spare.swap_remove(at))
    }

    /// Returns the number declared in the rule book.
    pub(super) fn so_far(&self) -> usize {
        self.known.iter().flatten().count() + self.spare.len()
    }

    fn get(&self, what: &'static str, id: u32) -> Result<&T> {
        let known = self.known.get(id as usize);
        // CUDA's `cudaErrorInvalidResourceHandle`.
        known
            .and_then(Option::as_ref)
            .ok_or_else(|| Error::Refused {
                call: what,
                code: 400,
                why: format!("there is no {what} {id}; it was never created, or was destroyed"),
            })
    }
}

impl Tables {
    pub(super) fn stream(&self, id: StreamId) -> Result<&Stream> {
        self.streams.get("stream", id.0)
    }

    pub(super) fn event(&self, id: EventId) -> Result<&Event> {
        self.events.get("event", id.0)
    }

    pub(super) fn graph(&self, id: GraphId) -> Result<&Graph> {
        self.graphs.get("graph", id.0)
    }

    /// Removes a destroyed stream.
    pub(super) fn retire_stream(&mut self, id: StreamId) {
        let stream = self.streams.take(id.0);
        // The legacy stream of a device is never destroyed.
        let spare = stream.filter(|stream| stream.kind != StreamKind::Legacy);
        self.streams.spare.extend(spare);
    }

    /// Removes a destroyed event. Pending waits for it refer to its record already (R12).
    pub(super) fn retire_event(&mut self, id: EventId) {
        let event = self.events.take(id.0);
        self.events.spare.extend(event);
    }

    /// Removes a destroyed graph; returns its effects, which hold values of the program.
    pub(super) fn retire_graph(&mut self, id: GraphId) -> Vec<Effect> {
        let Some(mut graph) = self.graphs.take(id.0) else {
            return Vec::new();
        };
        let effects = graph.nodes.drain(..).map(|node| node.effect).collect();
        self.graphs.spare.push(graph);
        effects
    }

    /// Sets the last record of an event.
    pub(super) fn recorded(&mut self, id: EventId, task: TaskId) {
        if let Some(Some(event)) = self.events.known.get_mut(id.0 as usize) {
            (event.record, event.at_ns) = (Some(task), None);
        }
    }

    /// Sets the time of a record that has completed. If the event was destroyed or recorded again, the time is not
    /// needed.
    pub(super) fn complete(&mut self, id: EventId, task: TaskId, now_ns: u64) {
        if let Some(Some(event)) = self.events.known.get_mut(id.0 as usize)
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
