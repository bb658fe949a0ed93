//! Computes the earlier work after which each operation is ordered by CUDA's rules, with the rule book of `sidestream::order`.

use sidestream::op::{Accesses, DeviceId, Kind, Op, OpId, SiteId, StreamId, StreamKind, ThreadId};
use sidestream::order::{Chain, Force, Frontier, Order, Steps};

use crate::model::StreamIndex;

/// A record of an event, which [`Edges::wait`] takes.
pub type Event = sidestream::op::EventId;

/// The streams of a trace under the rule book.
pub struct Edges {
    order: Order,
    /// The last point of each stream and record, as an index of `points`.
    frontier: Frontier<usize>,
    /// The nodes that must be complete at each point, at most one per stream.
    points: Vec<Vec<usize>>,
    streams: Vec<StreamId>,
    /// The stream of each node.
    stream_of: Vec<StreamId>,
    steps: Steps,
    ops: u32,
}

impl Edges {
    /// Returns edges for streams of these kinds, each on its device.
    pub fn new(streams: impl Iterator<Item = (StreamKind, u32)>) -> Edges {
        let mut order = Order::new();
        let streams = streams.map(|(kind, device)| order.add_stream(kind, DeviceId(device)));
        let streams = streams.collect();
        Edges {
            order,
            frontier: Frontier::default(),
            points: Vec::new(),
            streams,
            stream_of: Vec::new(),
            steps: Steps::new(),
            ops: 0,
        }
    }

    /// Submits the next node to a stream; returns the nodes of other streams after which it is ordered.
    pub fn submit(&mut self, stream: StreamIndex) -> Vec<usize> {
        let stream = self.streams[stream.0 as usize];
        let node = self.stream_of.len();
        self.stream_of.push(stream);
        let kernel = Kind::kernel(stream);
        let mut before = self.push(kernel, Some(node));
        // Work of the node's own stream is not listed: a stream runs in order by itself.
        before.retain(|other| self.stream_of[*other] != stream);
        before
    }

    /// Records an event in a stream.
    pub fn record(&mut self, stream: StreamIndex) -> Event {
        let stream = self.streams[stream.0 as usize];
        let event = self.order.add_event(false, None);
        self.push(Kind::Record { event, stream }, None);
        event
    }

    /// Makes the later work of a stream wait for a record.
    pub fn wait(&mut self, stream: StreamIndex, event: Event) {
        let stream = self.streams[stream.0 as usize];
        self.push(Kind::Wait { stream, event }, None);
    }

    /// Submits an operation; returns the nodes after which it is ordered. An operation that the rule book refuses orders
    /// nothing, since the traced program ran nevertheless.
    fn push(&mut self, kind: Kind, node: Option<usize>) -> Vec<usize> {
        let op = Op {
            id: OpId(self.ops),
            thread: ThreadId(0),
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        };
        self.ops += 1;
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        let mut before = Vec::new();
        if self.order.push(&op, &mut steps).is_ok() {
            // Threads are lanes of the replay itself.
            let on_streams = steps.iter().filter(|s| matches!(s.chain, Chain::Stream(_)));
            for step in on_streams {
                let mut points = Vec::new();
                self.frontier
                    .before(step, Force::Promised, &self.order, &mut points);
                before.extend(points.iter().flat_map(|point| &self.points[*point]));
                self.keep_last(&mut before);
                self.points.push(match node {
                    Some(node) => vec![node],
                    None => before.clone(),
                });
                self.frontier.advance(step, self.points.len() - 1);
            }
        }
        self.steps = steps;
        before
    }

    /// Keeps the last node of each stream, which implies all earlier ones.
    fn keep_last(&self, nodes: &mut Vec<usize>) {
        nodes.sort_unstable_by_key(|node| (self.stream_of[*node], std::cmp::Reverse(*node)));
        nodes.dedup_by_key(|node| self.stream_of[*node]);
    }
}
