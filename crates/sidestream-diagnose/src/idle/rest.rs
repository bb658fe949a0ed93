//! The part of a gap that no cause has taken yet.

use super::{Because, Cause, Idle, Stretch};
use crate::measure::Spans;

/// Number of spans of a cause that are kept as evidence.
const EVIDENCE: usize = 5;

/// The remaining part of a gap.
pub struct Rest<'a> {
    pub pieces: Vec<(i64, i64)>,
    pub idle: &'a mut Idle,
    pub in_steps: &'a Spans,
}

impl Rest<'_> {
    /// Assigns the remaining part of a span to a cause.
    pub fn take(&mut self, (from, to): (i64, i64), because: Option<Because>, cause: Cause) {
        let pieces = std::mem::take(&mut self.pieces);
        for (start, end) in pieces {
            let (a, b) = (start.max(from), end.min(to));
            if a >= b {
                self.pieces.push((start, end));
                continue;
            }
            let left = [(start, a), (b, end)].into_iter().filter(|p| p.0 < p.1);
            self.pieces.extend(left);
            self.note((a, b), because, cause);
        }
    }

    fn note(&mut self, (start_ns, end_ns): (i64, i64), because: Option<Because>, cause: Cause) {
        let duration_ns = end_ns.abs_diff(start_ns);
        let idle = &mut *self.idle;
        *idle.by_cause.entry(cause).or_default() += duration_ns;
        let stretch = Stretch {
            start_ns,
            duration_ns,
            because,
        };
        if let Some(all) = &mut idle.all {
            all.push((cause, stretch));
        }
        let longest = idle.longest_of_all.entry(cause).or_insert(stretch);
        if longest.duration_ns < duration_ns {
            *longest = stretch;
        }
        let in_steps_ns = self.in_steps.within_ns(start_ns, end_ns);
        *idle.in_steps.entry(cause).or_default() += in_steps_ns;
        if let (Some(because), true) = (because, in_steps_ns > 0) {
            let sum = idle.reasons.entry((cause, because)).or_default();
            sum.0 += 1;
            sum.1 += in_steps_ns;
        }
        let is_outside = matches!(
            cause,
            Cause::Startup | Cause::ProfilerOverhead | Cause::Initialisation
        );
        if in_steps_ns == 0 && !is_outside {
            return;
        }
        let longest = idle.longest.entry(cause).or_default();
        if longest.len() < EVIDENCE {
            longest.push(stretch);
        } else if let Some(least) = longest.iter_mut().min_by_key(|s| s.duration_ns)
            && least.duration_ns < duration_ns
        {
            *least = stretch;
        }
    }
}
