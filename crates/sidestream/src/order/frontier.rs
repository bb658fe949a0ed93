//! The edges of the rule book as edges of a graph.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::DeviceId;

/// The last node of every chain and of every record, so that a symbolic edge ("all so far on this
/// stream") becomes an edge from one node. A chain is in order by itself, so its last node stands
/// for all of it.
///
/// `N` names a node in whatever graph the reader builds.
#[derive(Clone, Debug)]
pub struct Frontier<N> {
    threads: Vec<Option<N>>,
    streams: Vec<Option<N>>,
    /// By record: its points; several if any one of them will do.
    records: Vec<SmallVec<[N; 1]>>,
    /// By stream and device: how many calls had been made when it last waited for all streams there.
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
        self.records.get(record.0 as usize)?.last().copied()
    }

    /// Adds to `nodes` what `step` stands behind: the end of its own chain first, then one node for
    /// each edge of at least this force. Call it once for each step, before [`Frontier::advance`]: of
    /// many streams those are left out behind which the chain stands already.
    ///
    /// Besides, it may stand behind any one of [`Frontier::any_of`].
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

    /// What the edges of a step name, for a question that nobody goes on from: not the end of its own
    /// chain, and all else.
    pub fn asked(&self, step: &Step, weakest: Force, order: &Order, nodes: &mut Vec<N>) {
        for edge in step.edges.iter().filter(|edge| edge.force <= weakest) {
            self.edge(edge.after, order, 0, nodes);
        }
    }

    /// The nodes of which a step stands behind one, whichever comes first; none for nearly every step.
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

    /// `node` is now the end of the step's chain, and of the record that the step freezes.
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

    /// `node` is now the end of a chain, without being a step of the rule book: the time of a call.
    pub(crate) fn set_last(&mut self, chain: Chain, node: N) {
        let (table, index) = match chain {
            Chain::Thread(t) => (&mut self.threads, t.0),
            Chain::Stream(s) => (&mut self.streams, s.0),
        };
        *super::grow(table, index) = Some(node);
    }
}
