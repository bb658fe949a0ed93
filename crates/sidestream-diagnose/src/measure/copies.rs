//! Copies, by direction and kind of memory.

use std::collections::BTreeMap;

use crate::model::{Direction, Memory, Trace, What};

/// Copies of one direction and one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The direction.
    pub direction: Direction,
    /// The host's memory, where one side is the host's; otherwise the memory that was read.
    pub memory: Memory,
    /// Number of copies.
    pub count: usize,
    /// Bytes that the copies moved.
    pub bytes: u64,
    /// Total time of the copies, in nanoseconds.
    pub duration_ns: u64,
}

impl Copies {
    /// Returns their speed, in bytes per nanosecond; `None` where it is unknown.
    pub fn gb_per_s(&self) -> Option<f64> {
        let known = self.bytes > 0 && self.duration_ns > 0;
        known.then(|| self.bytes as f64 / self.duration_ns as f64)
    }
}

/// Returns all copies, by direction and kind of memory.
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

/// Returns the memory that determines how a copy is done.
fn host_side(direction: Direction, from: Memory, to: Memory) -> Memory {
    match direction {
        Direction::Download => to,
        _ => from,
    }
}
