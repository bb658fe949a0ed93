//! How far the host runs ahead of the devices, and where it waits for them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::devices::DeviceTime;
use super::links::Links;
use super::steps::quantile_of;
use crate::model::{ApiKind, Direction, Memory, Name, Trace, What};
use crate::sort::order_by;

/// How launches reach the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Number of operations whose call is known.
    pub linked: usize,
    /// Number of operations whose call is not in the trace.
    pub orphans: usize,
    /// Median time from the start of a call to the start of its work.
    pub latency_ns: u64,
    /// Median number of operations that were submitted and had not started when another started.
    pub queue_depth: u64,
    /// The share, in thousandths, of operations with a known call that started while nothing else was queued: the device
    /// started them as soon as they were submitted.
    pub launch_bound_per_mille: u64,
}

/// Returns how launches reach the devices.
pub fn launches(trace: &Trace, links: &Links) -> Launches {
    let linked = || {
        let calls = (0..trace.work.len()).map(|at| links.call_of(at));
        let linked = trace.work.iter().zip(calls);
        linked.filter_map(|(work, call)| Some((work.start_ns, trace.calls[call?].start_ns)))
    };
    let count = linked().count();
    let mut latencies = Vec::with_capacity(count);
    latencies.extend(linked().map(|(start, call)| start.saturating_sub(call).max(0) as u64));
    let latency_ns = quantile_of(&mut latencies, 1, 2).unwrap_or(0);
    // The latencies take as much as a sixth of the memory of the rows.
    drop(latencies);
    let mut calls = Vec::with_capacity(count);
    calls.extend(linked().map(|(_, call)| call));
    calls.sort_unstable();
    // Work is in the order of its starts.
    let mut depths = Vec::with_capacity(count);
    let mut submitted = 0;
    for (begun, (start_ns, _)) in linked().enumerate() {
        while calls.get(submitted).is_some_and(|call| *call <= start_ns) {
            submitted += 1;
        }
        // This operation is no longer queued.
        depths.push(submitted.saturating_sub(begun + 1) as u64);
    }
    let alone = depths.iter().filter(|depth| **depth == 0).count() as u64;
    Launches {
        linked: count,
        orphans: links.orphans(),
        latency_ns,
        queue_depth: quantile_of(&mut depths, 1, 2).unwrap_or(0),
        launch_bound_per_mille: (1000 * alone).checked_div(count as u64).unwrap_or(0),
    }
}

/// A function that blocked the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// The function.
    pub name: Name,
    /// Number of calls that blocked the host.
    pub count: usize,
    /// Total time, summed over threads.
    pub duration_ns: u64,
    /// The part of that time in which every device was idle.
    pub idle_ns: u64,
}

/// Why a call blocked the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// The call is a synchronisation, or implies one.
    Sync,
    /// The call copied from or to host memory and returned when the copy was complete.
    Copy,
}

/// Returns whether a call blocked the host until work of the device was complete, and why.
pub fn held(trace: &Trace, call: usize, work: Option<usize>) -> Option<Held> {
    let call = &trace.calls[call];
    match call.api.kind {
        kind if kind.is_sync() => Some(Held::Sync),
        ApiKind::Malloc | ApiKind::Free => Some(Held::Sync),
        ApiKind::Copy if work.is_none() => Some(Held::Copy),
        // The name does not show whether the copy blocks the host; the times do.
        kind @ (ApiKind::Copy | ApiKind::CopyAsync) => {
            let work = &trace.work[work?];
            let What::Copy {
                direction,
                from,
                to,
                ..
            } = work.what
            else {
                return (kind == ApiKind::Copy).then_some(Held::Copy);
            };
            let pageable = match direction {
                Direction::Download => to == Memory::Pageable || to == Memory::Unknown,
                Direction::Upload => from == Memory::Pageable || from == Memory::Unknown,
                _ => false,
            };
            // The last bytes of an upload move after the call has returned: all of them, if the host had staged them.
            let within = (
                call.start_ns.max(work.start_ns),
                call.end_ns().min(work.end_ns()),
            );
            let inside_ns = within.1.saturating_sub(within.0).max(0) as u64;
            let waited = inside_ns > work.duration_ns / 2;
            let may_wait = pageable || kind == ApiKind::Copy;
            (may_wait && waited).then_some(Held::Copy)
        }
        _ => None,
    }
}

/// Returns the functions that blocked the host, the longest first.
pub fn blocking(trace: &Trace, works: &WorkOfCalls, devices: &[DeviceTime]) -> Vec<Blocking> {
    let mut sums: BTreeMap<Name, Blocking> = BTreeMap::new();
    for (at, call) in trace.calls.iter().enumerate() {
        if held(trace, at, works.first(at)).is_none() {
            continue;
        }
        let sum = sums.entry(call.name).or_insert(Blocking {
            name: call.name,
            count: 0,
            duration_ns: 0,
            idle_ns: 0,
        });
        sum.count += 1;
        sum.duration_ns = sum.duration_ns.saturating_add(call.duration_ns);
        let busy = |device: &DeviceTime| device.busy.within_ns(call.start_ns, call.end_ns());
        let busy_ns = devices.iter().map(busy).max().unwrap_or(0);
        let idle_ns = call.duration_ns.saturating_sub(busy_ns);
        sum.idle_ns = sum.idle_ns.saturating_add(idle_ns);
    }
    let mut sums: Vec<Blocking> = sums.into_values().collect();
    order_by(&mut sums, |sum| (Reverse(sum.duration_ns), sum.name));
    sums
}

/// The work that each call submitted.
#[derive(Debug)]
pub struct WorkOfCalls {
    first: Vec<u32>,
}

impl WorkOfCalls {
    /// Inverts the links.
    pub fn of(trace: &Trace, links: &Links) -> WorkOfCalls {
        let mut first = vec![u32::MAX; trace.calls.len()];
        for at in (0..trace.work.len()).rev() {
            if let Some(call) = links.call_of(at) {
                first[call] = at as u32;
            }
        }
        WorkOfCalls { first }
    }

    /// Returns the first work that a call submitted. Only a graph has more than one.
    pub fn first(&self, call: usize) -> Option<usize> {
        let at = self.first.get(call).copied().filter(|at| *at != u32::MAX);
        at.map(|at| at as usize)
    }
}
