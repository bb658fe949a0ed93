//! The activity of host threads, for the program: which threads hand over to each other, when operators began, and when data
//! was awaited.

use std::collections::BTreeSet;

use crate::idle::is_loading;
use crate::model::{RangeKind, Thread, ThreadIndex, Trace};

/// Which threads form one lane.
pub struct Lanes {
    pub of: Vec<usize>,
    pub count: usize,
}

impl Lanes {
    /// Assigns threads to lanes: threads of a process that are hardly ever in calls at the same time hand over to each other.
    pub fn of(trace: &Trace) -> Lanes {
        let (mut end, mut both_ns, mut all_ns) = (i64::MIN, 0, 0);
        let mut last: Option<ThreadIndex> = None;
        for call in &trace.calls {
            if last.is_some_and(|thread| thread != call.thread) && call.start_ns < end {
                both_ns =
                    u64::saturating_add(both_ns, end.min(call.end_ns()).abs_diff(call.start_ns));
            }
            all_ns = u64::saturating_add(all_ns, call.duration_ns);
            if call.end_ns() > end {
                end = call.end_ns();
                last = Some(call.thread);
            }
        }
        let processes: BTreeSet<i64> = trace
            .calls
            .iter()
            .map(|c| process(&trace.threads, c.thread))
            .collect();
        if processes.len() == 1 && both_ns <= all_ns / 50 {
            return Lanes {
                of: vec![0; trace.threads.len()],
                count: 1,
            };
        }
        Lanes {
            of: (0..trace.threads.len()).collect(),
            count: trace.threads.len(),
        }
    }
}

fn process(threads: &[Thread], thread: ThreadIndex) -> i64 {
    threads[thread.0 as usize].process
}

/// The starts of operators on each lane.
pub struct Operators {
    starts: Vec<Vec<i64>>,
}

impl Operators {
    /// Returns the operators that begin by this time.
    pub fn of(trace: &Trace, lanes: &Lanes, until_ns: i64) -> Operators {
        let mut starts: Vec<Vec<i64>> = Vec::new();
        starts.resize_with(lanes.count, Vec::new);
        for range in &trace.ranges {
            let noted = matches!(range.kind, RangeKind::Operator | RangeKind::Annotation);
            if noted && range.start_ns <= until_ns {
                starts[lanes.of[range.thread.0 as usize]].push(range.start_ns);
            }
        }
        Operators { starts }
    }

    pub fn within(&self, lane: usize, start: i64, end: i64) -> u32 {
        let before = |ns: i64| self.starts[lane].partition_point(|at| *at < ns);
        before(end).saturating_sub(before(start)) as u32
    }
}

/// The times at which the program waited for its data.
pub struct Loading {
    spans: Vec<(i64, i64)>,
}

impl Loading {
    pub fn of(trace: &Trace) -> Loading {
        let loads = trace.names.that(is_loading);
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for range in trace.ranges.iter().filter(|r| loads[r.name.0 as usize]) {
            if spans.last().is_none_or(|last| last.1 <= range.start_ns) {
                spans.push((range.start_ns, range.end_ns()));
            }
        }
        Loading { spans }
    }

    /// Returns the number of the batch that is awaited at this time, or next.
    pub fn batch_at(&self, ns: i64) -> u32 {
        self.spans.partition_point(|span| span.1 <= ns) as u32
    }

    pub fn within_ns(&self, start: i64, end: i64) -> u64 {
        let first = self.spans.partition_point(|span| span.1 <= start);
        let inside = self.spans[first..].iter().take_while(|span| span.0 < end);
        inside
            .map(|span| span.1.min(end).abs_diff(span.0.max(start)))
            .sum()
    }
}
