//! Operators, ranges and calls by name, with the figures of PyTorch's `key_averages`.
//!
//! The rows of a thread nest by their times: one is inside another if it begins and ends in it. Of two that overlap without
//! nesting, neither is inside the other, and the earlier one gets no further inner rows. The self time of a row is its time
//! less that of the rows directly inside it. A call outside every operator does not reduce the self time of the range around
//! it, since the profiler joins calls to operators only. An operator whose only inner row has its own name is merged with it.
//!
//! Device work belongs to the innermost operator around the call that submitted it, and also counts for all rows around that
//! operator: as a sum over kernels, even where they ran concurrently.

use std::collections::HashMap;

use super::links::Links;
use super::spans::add;
use crate::model::{Name, Names, RangeKind, Trace};
use crate::words::words;

words! {
    /// The kinds of rows in the table.
    pub enum RowKind {
        /// An operator of the framework.
        Operator = "operator",
        /// A range that the program named.
        Range = "range",
        /// The steps of the profiler's schedule, together.
        Step = "step",
        /// A call of CUDA's runtime or driver.
        Call = "call",
    }
}

/// All rows of one name, or of one name with inputs of equal shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The kind of row.
    pub kind: RowKind,
    /// Its name; meaningless for [`RowKind::Step`].
    pub name: Name,
    /// The shapes of its inputs, where they were recorded and are asked for.
    pub shape: Option<Name>,
    /// Number of rows.
    pub calls: u64,
    /// Time that the host spent in it.
    pub host_ns: u64,
    /// Host time without the rows inside it.
    pub host_self_ns: u64,
    /// Device time of the work launched in it.
    pub device_ns: u64,
    /// Device time without the work launched by operators inside it.
    pub device_self_ns: u64,
}

/// The key that distinguishes rows of the table.
type Key = (RowKind, Name, Option<Name>);

impl Operator {
    /// Returns the sum over no rows.
    fn of((kind, name, shape): Key) -> Operator {
        Operator {
            kind,
            name,
            shape,
            calls: 0,
            host_ns: 0,
            host_self_ns: 0,
            device_ns: 0,
            device_self_ns: 0,
        }
    }
}

/// A row that is open.
struct Frame {
    /// The row so far.
    row: Row,
    end_ns: i64,
    /// Number of rows directly inside it, and the last one of them.
    inner: u32,
    last: Option<Row>,
}

/// A row, with the time of the rows directly inside it.
#[derive(Clone, Copy)]
struct Row {
    key: Key,
    host_ns: u64,
    inner_ns: u64,
    device_self_ns: u64,
    device_inner_ns: u64,
}

/// The open rows of a thread.
#[derive(Default)]
struct Lane {
    open: Vec<Frame>,
    /// Indices of the operators among the open rows.
    operators: Vec<usize>,
}

/// Returns the rows of all threads by name and shapes, in no particular order.
pub fn host_rows(trace: &Trace, links: &Links) -> Vec<Operator> {
    let mut device_ns = vec![0u64; trace.calls.len()];
    for (at, work) in trace.work.iter().enumerate() {
        if let Some(call) = links.call_of(at) {
            device_ns[call] = device_ns[call].saturating_add(work.duration_ns);
        }
    }
    let mut sums = Sums::default();
    let mut lanes: Vec<Lane> = Vec::new();
    lanes.resize_with(trace.threads.len(), Lane::default);
    let mut shapes = trace.shapes.iter().peekable();
    let mut calls = trace.calls.iter().enumerate().peekable();
    let mut ranges = trace.ranges.iter().peekable();
    loop {
        // Both lists are in order, and an outer row comes before its inner ones.
        let call_first = match (calls.peek(), ranges.peek()) {
            (Some((_, call)), Some(range)) => {
                (call.start_ns, u64::MAX - call.duration_ns)
                    < (range.start_ns, u64::MAX - range.duration_ns)
            }
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        if call_first {
            let Some((at, call)) = calls.next() else {
                break;
            };
            let lane = &mut lanes[call.thread.0 as usize];
            let key = (RowKind::Call, call.name, None);
            lane.begin(&mut sums, key, (call.start_ns, call.end_ns()));
            if let Some(operator) = lane.operators.last() {
                let operator = &mut lane.open[*operator].row;
                add(&mut operator.device_self_ns, device_ns[at]);
            }
            continue;
        }
        let Some(range) = ranges.next() else { break };
        let mut shape = None;
        let key = (range.start_ns, range.name, range.thread);
        // Shapes are in the order of their operators, except for those that begin at one time.
        while let Some(next) = shapes.peek()
            && next.start_ns < range.start_ns
        {
            shapes.next();
        }
        if range.kind == RangeKind::Operator {
            let near = shapes.clone().take_while(|s| s.start_ns == key.0).take(16);
            let mut same = near.filter(|s| (s.start_ns, s.name, s.thread) == key);
            shape = same.next().map(|s| s.shape);
        }
        let key = match range.kind {
            RangeKind::Operator => (RowKind::Operator, range.name, shape),
            RangeKind::Annotation => (RowKind::Range, range.name, None),
            RangeKind::Step => (RowKind::Step, Names::OTHER, None),
            RangeKind::System => (RowKind::Call, range.name, None),
            RangeKind::Overhead | RangeKind::Python => continue,
        };
        let lane = &mut lanes[range.thread.0 as usize];
        lane.begin(&mut sums, key, (range.start_ns, range.end_ns()));
    }
    for lane in &mut lanes {
        while lane.end(&mut sums) {}
    }
    let mut rows: Vec<Operator> = sums.of.into_values().collect();
    rows.retain(|row| row.calls > 0);
    rows
}

impl Lane {
    fn begin(&mut self, sums: &mut Sums, key: Key, (start_ns, end_ns): (i64, i64)) {
        // Rows that have ended, or that overlap this one without nesting, do not contain it.
        while let Some(top) = self.open.last()
            && (start_ns >= top.end_ns || end_ns > top.end_ns)
        {
            self.end(sums);
        }
        if key.0 == RowKind::Operator {
            self.operators.push(self.open.len());
        }
        let row = Row {
            key,
            host_ns: start_ns.abs_diff(end_ns),
            inner_ns: 0,
            device_self_ns: 0,
            device_inner_ns: 0,
        };
        self.open.push(Frame {
            row,
            end_ns,
            inner: 0,
            last: None,
        });
    }

    /// Closes the innermost row; returns false if there is none.
    fn end(&mut self, sums: &mut Sums) -> bool {
        let Some(Frame {
            mut row,
            inner,
            last,
            ..
        }) = self.open.pop()
        else {
            return false;
        };
        if self.operators.last() == Some(&self.open.len()) {
            self.operators.pop();
        }
        if let (1, Some(only)) = (inner, last)
            && (only.key.0, only.key.1) == (row.key.0, row.key.1)
        {
            sums.take_back(&only);
            row.inner_ns = only.inner_ns;
            row.device_inner_ns = only.device_inner_ns;
            add(&mut row.device_self_ns, only.device_self_ns);
        }
        sums.add(&row);
        let is_free = row.key.0 == RowKind::Call && self.operators.is_empty();
        if let Some(outer) = self.open.last_mut()
            && (!is_free || outer.row.key.0 == RowKind::Call)
        {
            outer.inner += 1;
            add(&mut outer.row.inner_ns, row.host_ns);
            add(&mut outer.row.device_inner_ns, row.device_ns());
            outer.last = Some(row);
        }
        true
    }
}

impl Row {
    fn device_ns(&self) -> u64 {
        self.device_self_ns.saturating_add(self.device_inner_ns)
    }

    fn host_self_ns(&self) -> u64 {
        self.host_ns.saturating_sub(self.inner_ns)
    }
}

/// The sums of the rows so far.
#[derive(Default)]
struct Sums {
    of: HashMap<Key, Operator>,
}

impl Sums {
    fn add(&mut self, row: &Row) {
        let none = Operator::of(row.key);
        let sum = self.of.entry(row.key).or_insert(none);
        sum.calls += 1;
        add(&mut sum.host_ns, row.host_ns);
        add(&mut sum.host_self_ns, row.host_self_ns());
        add(&mut sum.device_ns, row.device_ns());
        add(&mut sum.device_self_ns, row.device_self_ns);
    }

    /// Undoes a row that is merged with the row around it.
    fn take_back(&mut self, row: &Row) {
        let Some(sum) = self.of.get_mut(&row.key) else {
            return;
        };
        sum.calls = sum.calls.saturating_sub(1);
        sum.host_ns = sum.host_ns.saturating_sub(row.host_ns);
        sum.host_self_ns = sum.host_self_ns.saturating_sub(row.host_self_ns());
        sum.device_ns = sum.device_ns.saturating_sub(row.device_ns());
        sum.device_self_ns = sum.device_self_ns.saturating_sub(row.device_self_ns);
    }
}

/// Returns the rows summed over shapes.
pub fn by_name(rows: &[Operator]) -> Vec<Operator> {
    let mut sums: HashMap<(RowKind, Name), Operator> = HashMap::new();
    for row in rows {
        let none = Operator::of((row.kind, row.name, None));
        let sum = sums.entry((row.kind, row.name)).or_insert(none);
        sum.calls += row.calls;
        add(&mut sum.host_ns, row.host_ns);
        add(&mut sum.host_self_ns, row.host_self_ns);
        add(&mut sum.device_ns, row.device_ns);
        add(&mut sum.device_self_ns, row.device_self_ns);
    }
    sums.into_values().collect()
}
