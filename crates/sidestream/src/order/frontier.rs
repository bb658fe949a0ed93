//! Turns the symbolic edges of the rule book into edges between nodes of a graph.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::DeviceId;

/// The last node of every chain and of every record, so that a symbolic edge ("all steps so far on this stream") becomes
/// an edge from one node. The steps of a chain are in order, so an edge from its last node covers all of them.
///
/// `N` identifies a node of the graph that the user of this type builds.
#[derive(Clone, Debug)]
pub struct Frontier<N> {
    threads: Vec<Option<N>>,
    streams: Vec<Option<N>>,
    /// By record: its nodes; several if a wait may be satisfied by any one of them.
    records: Vec<SmallVec<[N; 1]>>,
    /// By chain and device: the number of calls made when the chain last waited for all streams of the device.
    looked: HashMap<(Chain, DeviceId, bool), u64>,
}

impl<N> Default for Frontier<N> {
    fn default() -> Self {
        Frontier {
            threads: Vec::new(),
            streams: Vec::new(),
            records: Vec::new(),
            looked: HashMap::new(),
        }
    }
}

impl<N: Copy + PartialEq> Frontier<N> {
    /// Returns the last node of a chain.
    pub fn last(&self, chain: Chain) -> Option<N> {
        let (table, index) = match chain {
            Chain::Thread(t) => (&self.threads, t.0),
            Chain::Stream(s) => (&self.streams, s.0),
        };
        table.get(index as usize).copied().flatten()
    }

    /// Returns the node last stored in a record.
    pub fn recorded(&self, record: RecordId) -> Option<N> {
        self.records.get(record.0 as usize)?.last().copied()
    }

    /// Adds to `nodes` the nodes that `step` is ordered after: the end of its own chain first, then one node for each
    /// edge of at least this force. Call it once for each step, before [`Frontier::advance`]: for an edge from many
    /// streams, the streams that the chain is already ordered after are left out.
    ///
    /// The step may also be ordered after any one of [`Frontier::any_of`].
    pub fn before(&mut self, step: &Step, weakest: Force, order: &Order, nodes: &mut Vec<N>) {
        nodes.extend(self.last(step.chain));
        for edge in step.edges.iter().filter(|edge| edge.force <= weakest) {
            let device = match edge.after {
                After::Blocking(device) | After::Device(device) => device,
                After::Chain(_) | After::Record(_) => {
                    self.edge(edge.after, order, 0, nodes);
                    continue;
                }
            };
            let mut since = None;
            if order.has_many_streams(device) {
                let blocking = matches!(edge.after, After::Blocking(_));
                let looked = (step.chain, device, blocking);
                since = self.looked.insert(looked, order.calls_before());
            }
            self.edge(edge.after, order, since.unwrap_or(0), nodes);
        }
    }

    /// Adds to `nodes` the nodes that the edges of a step name, without the end of its own chain. For a query, which no
    /// later step continues: so no stream is left out.
    pub fn asked(&self, step: &Step, weakest: Force, order: &Order, nodes: &mut Vec<N>) {
        for edge in step.edges.iter().filter(|edge| edge.force <= weakest) {
            self.edge(edge.after, order, 0, nodes);
        }
    }

    /// Returns the nodes of which the first to finish ends a step's wait; empty for nearly every step.
    pub fn any_of(&self, step: &Step, weakest: Force) -> &[N] {
        let edges = step.edges.iter().filter(|edge| edge.force <= weakest);
        let mut several = edges.filter_map(|edge| match edge.after {
            After::Record(record) => self.records.get(record.0 as usize),
            _ => None,
        });
        let found = several.find(|points| points.len() > 1);
        found.map_or(&[], |points| points)
    }

    fn edge(&self, after: After, order: &Order, since: u64, nodes: &mut Vec<N>) {
        match after {
            After::Chain(chain) => nodes.extend(self.last(chain)),
            After::Record(record) => {
                if let Some([only]) = self
                    .records
                    .get(record.0 as usize)
                    .map(|points| &points[..])
                {
                    nodes.push(*only);
                }
            }
            After::Blocking(device) | After::Device(device) => {
                let blocking_only = matches!(after, After::Blocking(_));
                let streams = order.acted_since(device, since);
                let wanted = streams.filter(|(_, kind)| !blocking_only || kind.is_blocking());
                nodes.extend(wanted.filter_map(|(id, _)| self.last(Chain::Stream(id))));
            }
        }
    }

    /// Makes `node` the end of the step's chain, and stores it in the record that the step freezes.
    pub fn advance(&mut self, step: &Step, node: N) {
        self.set_last(step.chain, node);
        if let Some(record) = step.freezes {
            let points = super::grow(&mut self.records, record.0);
            if !step.beside {
                points.clear();
            }
            points.push(node);
        }
    }

    /// Makes `node`, the time of a call, the end of a chain without a step of the rule book.
    pub(crate) fn set_last(&mut self, chain: Chain, node: N) {
        let (table, index) = match chain {
            Chain::Thread(t) => (&mut self.threads, t.0),
            Chain::Stream(s) => (&mut self.streams, s.0),
        };
        *super::grow(table, index) = Some(node);
    }
}
