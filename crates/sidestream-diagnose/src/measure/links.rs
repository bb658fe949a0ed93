//! Which call submitted which work.

use crate::model::{Call, Trace, Work};

/// The call of each operation.
///
/// An operation may have no call: the host rows may be missing, or the call was made before the trace began.
#[derive(Debug)]
pub struct Links {
    of_work: Vec<u32>,
    orphans: usize,
}

const NONE: u32 = u32::MAX;

impl Links {
    /// Joins the work of a trace with its calls.
    pub fn of(trace: &Trace) -> Links {
        let by_number = by_number(trace);
        let of = |work: &Work| {
            let process = trace.streams[work.stream.0 as usize].process;
            find(trace, &by_number, process, work.correlation).unwrap_or(NONE)
        };
        let of_work: Vec<u32> = trace.work.iter().map(of).collect();
        let both = trace.work.iter().zip(&of_work);
        let orphans = both.filter(|(work, call)| **call == NONE && !work.is_migration());
        Links {
            orphans: orphans.count(),
            of_work,
        }
    }

    /// Returns the call that submitted some work, as its index in the trace.
    pub fn call_of(&self, work: usize) -> Option<usize> {
        let at = self.of_work.get(work).copied().filter(|at| *at != NONE);
        at.map(|at| at as usize)
    }

    /// Returns the number of operations whose call is missing; migrations, which never have one, do not count.
    pub fn orphans(&self) -> usize {
        self.orphans
    }
}

/// Returns the indices of the calls that share their number with an operation, by number and process.
fn by_number(trace: &Trace) -> Vec<u32> {
    let has_number = |call: &&Call| call.correlation != 0;
    let count = trace.calls.iter().filter(has_number).count();
    // Reserved in full: a growing vector would need twice the memory for a moment.
    let mut indices = Vec::with_capacity(count);
    let all = 0..trace.calls.len() as u32;
    indices.extend(all.filter(|at| has_number(&&trace.calls[*at as usize])));
    let place = |at: &u32| number_and_process(trace, *at);
    // Drivers mostly count in the order of the calls.
    if !indices.is_sorted_by_key(place) {
        indices.sort_unstable_by_key(|at| (place(at), *at));
    }
    indices
}

fn number_and_process(trace: &Trace, call: u32) -> (u32, i64) {
    let call = &trace.calls[call as usize];
    let process = trace.threads[call.thread.0 as usize].process;
    (call.correlation, process)
}

/// Returns the first call with this number, in this process where it is known. It examines few calls, however many share the
/// number.
fn find(trace: &Trace, by_number: &[u32], process: Option<i64>, number: u32) -> Option<u32> {
    if number == 0 {
        return None;
    }
    let from = (number, process.unwrap_or(i64::MIN));
    let first = by_number.partition_point(|at| number_and_process(trace, *at) < from);
    let found = *by_number.get(first)?;
    let (its_number, its_process) = number_and_process(trace, found);
    let is_theirs = process.is_none_or(|process| process == its_process);
    (its_number == number && is_theirs).then_some(found)
}
