//! The own work of a thread, once all threads are known.

use std::collections::HashMap;

use super::lane::{Lane, Named, Own};
use super::{Because, OWN_NS};
use crate::initial::Initial;
use crate::model::{Names, Thread};
use crate::sort::order_by;

/// In a trace without steps, work that happens once and takes more than this part of the trace counts as one-time work until
/// another trace shows otherwise.
const MUCH_OF_A_TRACE: u64 = 10;

/// Removes waits for another thread from a thread's own work: PyTorch runs the backward pass in a separate thread while the
/// thread that started it waits, and vice versa.
pub fn without_each_other(lanes: &mut [Lane], threads: &[Thread]) {
    let process = |at: usize| threads[at].process;
    let mut mains: HashMap<i64, usize> = HashMap::new();
    for at in (0..lanes.len()).filter(|at| !lanes[*at].is_backward) {
        let main = mains.entry(process(at)).or_insert(at);
        if lanes[*main].calls < lanes[at].calls {
            *main = at;
        }
    }
    for backward in 0..lanes.len() {
        let Some(main) = mains.get(&process(backward)).copied() else {
            continue;
        };
        if !lanes[backward].is_backward {
            continue;
        }
        let (of_main, of_backward) = (busy(&lanes[main]), busy(&lanes[backward]));
        lanes[main].own = without(&lanes[main].own, &of_backward);
        lanes[backward].own = without(&lanes[backward].own, &of_main);
    }
}

/// Returns the spans in which a thread was in calls, or between two calls in quick succession.
fn busy(lane: &Lane) -> Vec<(i64, i64)> {
    let Some((mut from, until)) = lane.began_ns.zip(lane.called_ns) else {
        return Vec::new();
    };
    let mut busy = Vec::with_capacity(lane.own.len() + 1);
    for own in &lane.own {
        busy.push((from, own.0));
        from = own.1;
    }
    busy.push((from, until));
    busy
}

/// Returns the parts of `own` that lie outside of `busy` and are long enough.
fn without(own: &[Own], busy: &[(i64, i64)]) -> Vec<Own> {
    let mut left = Vec::with_capacity(own.len());
    for (start, end, because) in own {
        let mut from = *start;
        let first = busy.partition_point(|span| span.1 <= *start);
        for span in busy[first..].iter().take_while(|span| span.0 < *end) {
            left.push((from, span.0, *because));
            from = from.max(span.1);
        }
        left.push((from, *end, *because));
    }
    left.retain(|(start, end, _)| start < end && start.abs_diff(*end) >= OWN_NS);
    left
}

/// Treats a thread's own work that happens once, and for long, as one-time work, in a trace without steps.
pub fn once(lanes: &mut [Lane], initial: &Initial) {
    let Some(trace_ns) = initial.unmarked_ns() else {
        return;
    };
    let long_ns = (trace_ns / MUCH_OF_A_TRACE).max(OWN_NS);
    for lane in lanes {
        let length = |own: &Own| own.0.abs_diff(own.1);
        let name = |own: &Own| own.2.map(|because| because.name);
        let is_once = |own: &Own| {
            let alike = lane
                .own
                .iter()
                .filter(|other| name(other) == name(own) && length(other) >= length(own) / 2);
            length(own) > long_ns
                && alike.count() == 1
                && name(own).is_none_or(|name| initial.is_seen_once(name))
        };
        let once: Vec<Own> = lane
            .own
            .iter()
            .filter(|own| is_once(own))
            .copied()
            .collect();
        lane.own.retain(|own| !once.contains(own));
        let unnamed = Because::of(Names::OTHER);
        let named = once.into_iter();
        let named = named.map(|(start, end, because)| (start, end, because.unwrap_or(unnamed)));
        lane.initial.extend(named);
        order_by(&mut lane.initial, |named| named.0);
        let mut until = i64::MIN;
        lane.initial.retain_mut(|named: &mut Named| {
            named.0 = named.0.max(until);
            until = until.max(named.1);
            named.0 < named.1
        });
    }
}
