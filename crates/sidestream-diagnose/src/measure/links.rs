//! Which call asked for which work.

use crate::model::{Call, Trace};

/// The calls of a trace, to be found by the number that they share with their work.
///
/// A work may have no call: the host rows may be missing, or come from before the trace began.
#[derive(Debug)]
pub struct Links {
    /// Numbers with the indices of their calls, in order.
    by_correlation: Vec<(u32, u32)>,
    of_work: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Links {
    /// Joins the work of a trace with its calls.
    pub fn of(trace: &Trace) -> Links {
        let numbered = trace.calls.iter().enumerate();
        let mut by_correlation: Vec<(u32, u32)> = numbered
            .filter(|(_, call)| call.correlation != 0)
            .map(|(at, call)| (call.correlation, at as u32))
            .collect();
        by_correlation.sort_unstable();
        let mut links = Links {
            by_correlation,
            of_work: Vec::new(),
        };
        links.of_work = trace
            .work
            .iter()
            .map(|work| {
                let process = trace.streams[work.stream.0 as usize].process;
                let call = links.call(trace, process, work.correlation);
                call.map_or(NONE, |at| at as u32)
            })
            .collect();
        links
    }

    /// The call with this number, in this process where it is known.
    pub fn call(&self, trace: &Trace, process: Option<i64>, correlation: u32) -> Option<usize> {
        if correlation == 0 {
            return None;
        }
        let first = self
            .by_correlation
            .partition_point(|(number, _)| *number < correlation);
        let same = self.by_correlation[first..].iter();
        let mut same = same.take_while(|(number, _)| *number == correlation);
        let theirs = |call: &Call| trace.threads[call.thread.0 as usize].process;
        let found = same.find(|(_, at)| {
            process.is_none_or(|process| theirs(&trace.calls[*at as usize]) == process)
        })?;
        Some(found.1 as usize)
    }

    /// The call that asked for some work: its index in the trace.
    pub fn call_of(&self, work: usize) -> Option<usize> {
        let at = self.of_work.get(work).copied().filter(|at| *at != NONE);
        at.map(|at| at as usize)
    }

    /// How much work has no call.
    pub fn orphans(&self) -> usize {
        self.of_work.iter().filter(|at| **at == NONE).count()
    }
}
