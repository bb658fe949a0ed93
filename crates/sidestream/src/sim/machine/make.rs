//! Creation of streams, events and graphs.

use std::collections::BTreeMap;

use super::command::Command;
use super::graph::Graph;
use super::state::{State, refused};
use super::tables::{Event, Stream};
use crate::backend::{Create, no_interprocess};
use crate::error::{Error, Result};
use crate::op::{DeviceId, EventId, GraphId, Kind, Op, OpId, SiteId, StreamKind, ThreadId};
use crate::order::Chain;

impl State {
    pub(super) fn create(&mut self, what: Create<'_>) -> Result<()> {
        match what {
            Create::Stream {
                id,
                device,
                kind,
                priority,
                ..
            } => {
                self.refuse_lost(device)?;
                let stream = self.new_stream(device, kind, priority);
                self.tables.streams.set(id.0, stream);
            }
            Create::Event {
                id, device, timing, ..
            } => {
                self.refuse_lost(device)?;
                let event = self.new_event(device, timing)?;
                self.tables.events.set(id.0, event);
            }
            Create::Interprocess { .. } => return Err(no_interprocess()),
            Create::Graph { id, device, nodes } => {
                self.refuse_lost(device)?;
                let given = nodes.iter().map(|node| {
                    let command = Command::of_node(node)?;
                    Ok((command, node.after.to_vec()))
                });
                let mut nodes = given.collect::<Result<Vec<_>>>()?;
                if nodes.is_empty() {
                    nodes = self.captures.take_ended(device).unwrap_or_default();
                }
                let nodes = self.graph_nodes(device, nodes);
                match self.tables.graphs.take(id.0) {
                    Some(graph) => return self.update_graph(id, graph, nodes),
                    None => {
                        let graph = self.new_graph(device);
                        self.tables.graphs.set(id.0, Graph { nodes, ..graph });
                    }
                }
            }
        }
        Ok(())
    }

    fn new_stream(&mut self, device: DeviceId, kind: StreamKind, priority: i32) -> Stream {
        let core = &self.core;
        let spare = self.tables.streams.reuse(|spare| {
            let last = core.frontier.last(Chain::Stream(spare.ordered));
            (spare.device, spare.kind, spare.priority) == (device, kind, priority)
                && last.is_none_or(|task| core.is_done(task))
        });
        spare.unwrap_or_else(|| {
            let ordered = self.core.order.add_stream(kind, device);
            self.core.stream_lane(ordered, priority);
            Stream {
                ordered,
                device,
                kind,
                priority,
            }
        })
    }

    fn new_event(&mut self, device: DeviceId, timing: bool) -> Result<Event> {
        let fresh = |ordered| Event {
            ordered,
            device,
            timing,
            record: None,
            at_ns: None,
        };
        let fits = |spare: &Event| (spare.device, spare.timing) == (device, timing);
        let Some(spare) = self.tables.events.reuse(fits) else {
            return Ok(fresh(self.core.order.add_event(timing, Some(device))));
        };
        let kind = Kind::CreateEvent {
            event: spare.ordered,
        };
        self.tell(kind)?;
        Ok(fresh(spare.ordered))
    }

    fn new_graph(&mut self, device: DeviceId) -> Graph {
        let core = &self.core;
        let spare = self.tables.graphs.reuse(|spare| {
            spare.device == device && spare.last.is_none_or(|task| core.is_done(task))
        });
        spare.unwrap_or_else(|| Graph {
            ordered: GraphId(self.tables.graphs.so_far() as u32),
            device,
            nodes: Vec::new(),
            lanes: BTreeMap::new(),
            last: None,
        })
    }

    /// Returns the time between two complete events, or the error that the driver returns (R11).
    pub(super) fn elapsed_ns(&mut self, from: EventId, to: EventId) -> Result<f64> {
        let (start, end) = (*self.tables.event(from)?, *self.tables.event(to)?);
        self.refuse_lost(start.device)?;
        self.refuse_lost(end.device)?;
        self.tell(Kind::Elapsed {
            from: start.ordered,
            to: end.ordered,
        })?;
        match (start.at_ns, end.at_ns) {
            (Some(start_ns), Some(end_ns)) => Ok(end_ns as f64 - start_ns as f64),
            _ => Err(Error::Refused {
                call: "elapsed",
                code: 600,
                why: "an event is not complete; synchronize with both first".into(),
            }),
        }
    }

    /// Passes a call without steps to the rule book.
    fn tell(&mut self, kind: Kind) -> Result<()> {
        let op = Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind,
            accesses: Default::default(),
        };
        let (told, steps) = self.core.ordered(&op);
        self.core.reuse(steps);
        told.map(|_| ()).map_err(|misuse| refused(&kind, misuse))
    }
}
