//! One-time work of a program: creating contexts, loading code, allocating memory for the first time, capturing graphs. It
//! costs time once, and no change of a step recovers that time.
//!
//! A call or an operator counts as one-time work if it is the first of its name and much longer than those after it, or far
//! longer than all others of its name, of which there are few; if it loads code or captures a graph; or if it allocates memory
//! as no call of its name still does in the second half of the run.

use std::collections::HashMap;

use crate::measure::Steps;
use crate::model::{ApiKind, Call, Name, Range, RangeKind, Trace};

/// A shorter call does not block the host for long enough to matter.
const LEAST_CALL_NS: u64 = 100_000;
/// A shorter operator does not matter either.
const LEAST_OPERATOR_NS: u64 = 1_000_000;
/// The minimum time of a call that loads code.
const LEAST_LOADING_NS: u64 = 20_000;
/// The first call of a name is one-time work if it takes this many times as long as the median.
const FIRST: u64 = 5;
/// A later call is one-time work if it takes this many times as long as the median.
const LATER: u64 = 50;

/// How long calls and operators of each name took.
pub struct Initial {
    names: HashMap<(Name, bool), Lengths>,
    /// The middle of the trace: an allocation before it counts as one-time work if there is none of its kind after it.
    half_ns: i64,
    /// Number of steps.
    steps: usize,
    /// Length of the trace, in nanoseconds.
    trace_ns: u64,
}

/// The durations of one name, counted by powers of two.
struct Lengths {
    count: u32,
    by_power: [u32; 64],
    last_start_ns: i64,
    is_begun: bool,
}

impl Initial {
    /// Records the durations in one pass over the calls and operators.
    pub fn of(trace: &Trace, steps: &Steps) -> Initial {
        let mut names: HashMap<(Name, bool), Lengths> = HashMap::new();
        let mut note = |name: Name, is_call: bool, start_ns: i64, duration_ns: u64| {
            let lengths = names.entry((name, is_call)).or_insert_with(|| Lengths {
                count: 0,
                by_power: [0; 64],
                last_start_ns: start_ns,
                is_begun: false,
            });
            lengths.count += 1;
            lengths.by_power[power(duration_ns)] += 1;
            lengths.last_start_ns = start_ns;
        };
        for call in &trace.calls {
            note(call.name, true, call.start_ns, call.duration_ns);
        }
        let is_named =
            |range: &&Range| matches!(range.kind, RangeKind::Operator | RangeKind::Annotation);
        for range in trace.ranges.iter().filter(is_named) {
            note(range.name, false, range.start_ns, range.duration_ns);
        }
        let steps_ns = match (steps.steps.first(), steps.steps.last()) {
            (Some(first), Some(last)) => Some((first.start_ns, last.end_ns)),
            _ => None,
        };
        let calls = trace.calls.first().zip(trace.calls.last());
        let (from, to) = steps_ns
            .or(calls.map(|(first, last)| (first.start_ns, last.end_ns())))
            .unwrap_or_default();
        Initial {
            names,
            half_ns: from.midpoint(to),
            steps: steps.steps.len(),
            trace_ns: from.abs_diff(to),
        }
    }

    /// Returns whether a call is one-time work. The calls must be passed in their order.
    pub fn is_call(&mut self, call: &Call, name: &str) -> bool {
        let (half_ns, steps) = (self.half_ns, self.steps);
        let Some(lengths) = self.names.get_mut(&(call.name, true)) else {
            return false;
        };
        let is_first = !std::mem::replace(&mut lengths.is_begun, true);
        let recurs = steps > 0 && lengths.count as usize > (steps / 2).max(3);
        if is_of_loading(call.api.kind, name) && !recurs {
            return call.duration_ns >= LEAST_LOADING_NS;
        }
        let takes_memory = matches!(
            call.api.kind,
            ApiKind::Malloc | ApiKind::Free | ApiKind::HostMemory
        );
        if takes_memory && lengths.last_start_ns < half_ns {
            return call.duration_ns >= LEAST_LOADING_NS;
        }
        // A wait is as long as the work for which it waits.
        !call.api.kind.is_sync()
            && call.duration_ns >= LEAST_CALL_NS
            && lengths.stands_out(call.duration_ns, is_first)
    }

    /// Returns whether an operator is one-time work. The operators must be passed in their order.
    pub fn is_operator(&mut self, range: &Range) -> bool {
        let Some(lengths) = self.names.get_mut(&(range.name, false)) else {
            return false;
        };
        let is_first = !std::mem::replace(&mut lengths.is_begun, true);
        range.duration_ns >= LEAST_OPERATOR_NS
            && lengths.count > 1
            && lengths.stands_out(range.duration_ns, is_first)
    }

    /// Returns the length of a trace without steps; `None` for a trace with steps.
    pub fn unmarked_ns(&self) -> Option<u64> {
        (self.steps == 0).then_some(self.trace_ns)
    }

    /// Returns whether the trace has one operator or annotation of this name.
    pub fn is_seen_once(&self, name: Name) -> bool {
        self.names.get(&(name, false)).is_some_and(|l| l.count == 1)
    }

    /// Returns whether graphs are captured once, and not in every step.
    pub fn captures_once(&self, call: &Call) -> bool {
        let count = self.names.get(&(call.name, true)).map_or(0, |l| l.count);
        self.steps == 0 || count as usize <= (self.steps / 2).max(3)
    }
}

impl Lengths {
    fn stands_out(&self, duration_ns: u64, is_first: bool) -> bool {
        if self.count == 1 {
            return true;
        }
        let median_ns = self.median_ns();
        let far = median_ns.saturating_mul(LATER);
        let is_rare = self.longer(far) <= (self.count / 100).max(3);
        is_first && duration_ns >= median_ns.saturating_mul(FIRST) || duration_ns > far && is_rare
    }

    /// Returns a value between the median and twice the median.
    fn median_ns(&self) -> u64 {
        let mut below = 0;
        let at = self.by_power.iter().position(|count| {
            below += count;
            2 * below > self.count
        });
        1 << at.unwrap_or(0).min(62)
    }

    /// Returns the number of durations that are certainly longer than this.
    fn longer(&self, than_ns: u64) -> u32 {
        let from = power(than_ns) + 1;
        self.by_power[from.min(63)..].iter().sum()
    }
}

/// Returns the number of bits of a length.
fn power(ns: u64) -> usize {
    (64 - ns.leading_zeros() as usize).min(63)
}

/// Returns whether a call loads code or creates a graph.
fn is_of_loading(kind: ApiKind, name: &str) -> bool {
    const PARTS: [&str; 4] = [
        "GraphInstantiate",
        "GraphUpload",
        "BeginCapture",
        "EndCapture",
    ];
    kind == ApiKind::Module || PARTS.iter().any(|part| name.contains(part))
}
