//! The edges of the rule book as edges of a graph.

use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::StreamKind;

/// The last node of every chain and of every record, so that a symbolic edge ("all so far on this
/// stream") becomes an edge from one node. A chain is in order by itself, so its last node stands
/// for all of it.
///
/// `N` names a node in whatever graph the reader builds.
#[derive(Clone, Debug)]
pub struct Frontier<N> {
    threads: Vec<Option<N>>,
    streams: Vec<Option<N>>,
    records: Vec<Option<N>>,
}

impl<N> Default for Frontier<N> {
    fn default() -> Self {
        Frontier {
            threads: Vec::new(),
            streams: Vec::new(),
            records: Vec::new(),
        }
    }
}

impl<N: Copy + PartialEq> Frontier<N> {
    /// The last node of a chain.
    pub fn last(&self, chain: Chain) -> Option<N> {
        let (table, index) = match chain {
            Chain::Thread(t) => (&self.threads, t.0),
            Chain::Stream(s) => (&self.streams, s.0),
        };
        table.get(index as usize).copied().flatten()
    }

    /// The node that was last frozen in a record.
    pub fn recorded(&self, record: RecordId) -> Option<N> {
        self.records.get(record.0 as usize).copied().flatten()
    }

    /// Adds to `nodes` what `step` stands behind: the end of its own chain first, then one node for
    /// each edge of at least this force. Call it before [`Frontier::advance`].
    pub fn before(&self, step: &Step, weakest: Force, order: &Order, nodes: &mut Vec<N>) {
        nodes.extend(self.last(step.chain));
        let edges = step.edges.iter().filter(|edge| edge.force <= weakest);
        for edge in edges {
            match edge.after {
                After::Chain(chain) => nodes.extend(self.last(chain)),
                After::Record(record) => nodes.extend(self.recorded(record)),
                After::Blocking(device) => {
                    let blocking = |kind: StreamKind| kind.is_blocking();
                    self.streams_of(order, nodes, |kind, at| at == device && blocking(kind));
                }
                After::Device(device) => self.streams_of(order, nodes, |_, at| at == device),
            }
        }
    }

    /// `node` is now the end of the step's chain, and of the record that the step freezes.
    pub fn advance(&mut self, step: &Step, node: N) {
        self.set_last(step.chain, node);
        if let Some(record) = step.freezes {
            *super::grow(&mut self.records, record.0) = Some(node);
        }
    }

    /// `node` is now the end of a chain, without being a step of the rule book: the time of a call.
    pub fn set_last(&mut self, chain: Chain, node: N) {
        let (table, index) = match chain {
            Chain::Thread(t) => (&mut self.threads, t.0),
            Chain::Stream(s) => (&mut self.streams, s.0),
        };
        *super::grow(table, index) = Some(node);
    }

    fn streams_of(
        &self,
        order: &Order,
        nodes: &mut Vec<N>,
        wanted: impl Fn(StreamKind, crate::op::DeviceId) -> bool,
    ) {
        let streams = order.streams().filter(|&(_, kind, at)| wanted(kind, at));
        nodes.extend(streams.filter_map(|(id, ..)| self.last(Chain::Stream(id))));
    }
}
