//! Kernels and operators by name, as profilers list them.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::model::{Name, RangeKind, ThreadIndex, Trace, What};
use crate::sort::order_by;

/// All rows of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The name.
    pub name: Name,
    /// Number of rows.
    pub calls: usize,
    /// Their total time, in nanoseconds.
    pub total_ns: u64,
    /// Their self time in nanoseconds: their total time minus that of the operators directly inside them.
    pub self_ns: u64,
}

/// Returns the kernels by name, the longest total time first.
pub fn kernels(trace: &Trace) -> Vec<Line> {
    let mut sums = HashMap::new();
    for work in &trace.work {
        if let What::Kernel(_) = work.what {
            add(&mut sums, work.name, work.duration_ns, work.duration_ns);
        }
    }
    sorted(sums)
}

/// Returns the operators by name, the longest self time first.
pub fn operators(trace: &Trace) -> Vec<Line> {
    let mut sums = HashMap::new();
    // The operators that are open on each thread, with the time of their inner operators so far.
    let mut open: HashMap<ThreadIndex, Vec<(usize, u64)>> = HashMap::new();
    let ranges = &trace.ranges;
    let mut close = |(at, inner_ns): (usize, u64)| {
        let range = &ranges[at];
        let self_ns = range.duration_ns.saturating_sub(inner_ns);
        add(&mut sums, range.name, range.duration_ns, self_ns);
    };
    for (at, range) in ranges.iter().enumerate() {
        if range.kind != RangeKind::Operator {
            continue;
        }
        let stack = open.entry(range.thread).or_default();
        while let Some(top) = stack.pop_if(|top| ranges[top.0].end_ns() <= range.start_ns) {
            close(top);
        }
        if let Some(outer) = stack.last_mut() {
            outer.1 = outer.1.saturating_add(range.duration_ns);
        }
        stack.push((at, 0));
    }
    open.into_values().flatten().for_each(close);
    sorted(sums)
}

fn add(sums: &mut HashMap<Name, Line>, name: Name, total_ns: u64, self_ns: u64) {
    let line = sums.entry(name).or_insert(Line {
        name,
        calls: 0,
        total_ns: 0,
        self_ns: 0,
    });
    line.calls += 1;
    line.total_ns = line.total_ns.saturating_add(total_ns);
    line.self_ns = line.self_ns.saturating_add(self_ns);
}

fn sorted(sums: HashMap<Name, Line>) -> Vec<Line> {
    let mut lines: Vec<Line> = sums.into_values().collect();
    order_by(&mut lines, |line| (Reverse(line.self_ns), line.name));
    lines
}
