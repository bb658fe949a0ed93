//! Copies by what they move between.

use std::collections::BTreeMap;

use crate::model::{Direction, Memory, Trace, What};

/// Copies of one direction and one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The direction.
    pub direction: Direction,
    /// The memory of the host, where one side is the host's; else the one that was read.
    pub memory: Memory,
    /// How many.
    pub count: usize,
    /// How much they moved.
    pub bytes: u64,
    /// How long they took, one after the other.
    pub duration_ns: u64,
}

impl Copies {
    /// How fast they were, in bytes a nanosecond; none where that cannot be said.
    pub fn gb_per_s(&self) -> Option<f64> {
        let known = self.bytes > 0 && self.duration_ns > 0;
        known.then(|| self.bytes as f64 / self.duration_ns as f64)
    }
}

/// All copies, by direction and kind of memory.
pub fn copies(trace: &Trace) -> Vec<Copies> {
    let mut sums: BTreeMap<(Direction, Memory), Copies> = BTreeMap::new();
    for work in &trace.work {
        let What::Copy {
            direction,
            from,
            to,
            bytes,
        } = work.what
        else {
            continue;
        };
        let memory = host_side(direction, from, to);
        let sum = sums.entry((direction, memory)).or_insert(Copies {
            direction,
            memory,
            count: 0,
            bytes: 0,
            duration_ns: 0,
        });
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.duration_ns = sum.duration_ns.saturating_add(work.duration_ns);
    }
    sums.into_values().collect()
}

/// The memory that decides how a copy goes.
fn host_side(direction: Direction, from: Memory, to: Memory) -> Memory {
    match direction {
        Direction::Download => to,
        _ => from,
    }
}
