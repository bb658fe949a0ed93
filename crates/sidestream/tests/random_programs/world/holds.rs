//! The memory of a graph, with plain vectors, and the effect of its nodes on them.

use std::ops::Range;

use sidestream::graph::{BufKey, NodeId, PinnedKey};
use sidestream::op::DeviceId;

use super::super::graph_act::Part;

/// The memory of a graph, its expected contents, and the effect of its nodes.
pub struct Holds {
    pub(super) device: DeviceId,
    pub(super) buffers: Vec<Buffer>,
    pub(super) pinned: Vec<(PinnedKey<u32>, Vec<u32>)>,
    pub(super) nodes: Vec<NodeId>,
    pub(super) steps: Vec<Step>,
}

pub(super) struct Buffer {
    pub(super) key: BufKey<u32>,
    pub(super) device: DeviceId,
    pub(super) first: usize,
    pub(super) model: Vec<u32>,
}

/// The effect of a node on the plain vectors.
pub(super) type Step = Box<dyn Fn(&mut Holds) + Send + Sync>;

/// A range of the values of a buffer or of pinned memory. Position 0 is the first value that is used.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) at: usize,
    pub(super) range: Range<usize>,
}

impl Holds {
    pub(super) fn new(device: DeviceId) -> Holds {
        Holds {
            device,
            buffers: Vec::new(),
            pinned: Vec::new(),
            nodes: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Performs a launch: all nodes, one after another.
    pub(super) fn step(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        steps.iter().for_each(|step| step(self));
        self.steps = steps;
    }

    pub(super) fn part(&self, part: Part) -> Option<Values> {
        let at = part.which.checked_rem(self.buffers.len())?;
        Some(values_of(at, part, self.buffers[at].model.len()))
    }

    pub(super) fn pinned_part(&self, part: Part) -> Option<Values> {
        let at = part.which.checked_rem(self.pinned.len())?;
        Some(values_of(at, part, self.pinned[at].1.len()))
    }

    pub(super) fn view(&self, part: &Values) -> BufKey<u32> {
        self.buffers[part.at].key
    }

    /// Returns where the values are in their buffer.
    pub(super) fn bounds(&self, part: &Values) -> Range<usize> {
        let first = self.buffers[part.at].first;
        first + part.range.start..first + part.range.end
    }

    pub(super) fn at(&mut self, part: &Values) -> &mut [u32] {
        &mut self.buffers[part.at].model[part.range.clone()]
    }

    pub(super) fn pinned_at(&mut self, part: &Values) -> &mut [u32] {
        &mut self.pinned[part.at].1[part.range.clone()]
    }
}

impl Buffer {
    pub(super) fn bounds(&self) -> Range<usize> {
        self.first..self.first + self.model.len()
    }
}

impl Values {
    pub(super) fn first(&self, n: usize) -> Values {
        let start = self.range.start;
        Values {
            at: self.at,
            range: start..start + n,
        }
    }

    pub(super) fn overlaps(&self, other: &Values) -> bool {
        let (a, b) = (&self.range, &other.range);
        self.at == other.at && a.start.max(b.start) < a.end.min(b.end)
    }
}

fn values_of(at: usize, part: Part, len: usize) -> Values {
    let range = part.from * len / 1000..part.to * len / 1000;
    Values { at, range }
}
