//! Findings about streams that wait for each other, and about parts of a step that follow each other.

use std::cmp::Reverse;

use super::view::View;
use super::{Code, Evidence, Ground, time};
use crate::idle::Cause;
use crate::model::{ApiKind, RangeKind, What};
use crate::replay::Change;
use crate::sort::order_by;

impl View<'_> {
    pub fn stream_wait(&self) -> Ground {
        let idle = self.idle_ns(Cause::StreamWait);
        let dropped = self.grounds.changes.iter().find_map(|change| match change {
            Change::DropWait(waits, on) => Some((waits, on)),
            _ => None,
        });
        let which = match dropped {
            Some((waits, on)) => format!(
                "work of stream {waits} waits for events of stream {on}, so they take turns; an upload has to wait \
                 only until its buffer is free, which is when the step before the last is complete"
            ),
            None => match self.reasons(Cause::StreamWait) {
                reasons if reasons.is_empty() => "copies wait beside the kernels".to_owned(),
                reasons => format!("the waits placed before it are {reasons}"),
            },
        };
        let nothing = match idle {
            0 => String::new(),
            idle => format!(
                ", and the device does nothing for {} of {} of {}",
                time(idle),
                self.whole(),
                time(self.step_ns)
            ),
        };
        let text = format!(
            "work that was submitted waits for an event or a host function{nothing}: {which}; a trace cannot say that a wait is \
             not needed: look at what it is for"
        );
        let mut evidence = self.stretches(Cause::StreamWait);
        if evidence.is_empty() {
            let trace = self.grounds.trace;
            evidence = self.longest_calls(|at| trace.calls[at].api.kind == ApiKind::WaitEvent);
        }
        if evidence.is_empty() {
            let work = &self.grounds.trace.work;
            let copies = (0..work.len()).filter(|at| {
                work[*at].is_host_copy() && self.is_mine(&work[*at]) && self.in_steps(&work[*at])
            });
            evidence = self.longest(copies);
        }
        self.ground(Code::StreamWait, idle, idle, self.floor_ns, text, evidence)
    }

    /// Judges two ranges that the replay treated as stages.
    pub fn stages(&self) -> Option<Ground> {
        let stages = self
            .grounds
            .changes
            .iter()
            .find_map(|change| match change {
                Change::Pipeline(ranges) => Some(ranges),
                _ => None,
            })?;
        let trace = self.grounds.trace;
        let is_stage = |name| stages.iter().any(|stage| stage == trace.names.text(name));
        let ranges = trace.ranges.iter();
        let ranges = ranges.filter(|r| r.kind == RangeKind::Annotation && is_stage(r.name));
        let mut ranges: Vec<_> = ranges.collect();
        order_by(&mut ranges, |range| {
            (Reverse(range.duration_ns), range.start_ns)
        });
        let evidence = ranges.iter().take(5).map(|range| Evidence {
            what: self.text(range.name),
            start_ns: range.start_ns,
            duration_ns: range.duration_ns,
            is_gap: false,
            call: None,
            operators: Vec::new(),
        });
        let kernels = trace.work.iter().filter(|work| {
            matches!(work.what, What::Kernel(_)) && self.is_mine(work) && self.in_steps(work)
        });
        let kernels = kernels.map(|work| work.duration_ns);
        let taken = self.a_step(kernels.fold(0, u64::saturating_add));
        let text = format!(
            "{} follow each other in each step: as stages in streams of their own, the first a step ahead of the next, \
             they run at once, if the first needs nothing that the last makes, which no trace says",
            stages.join(" and ")
        );
        Some(self.ground(
            Code::SerialStages,
            taken.min(self.step_ns),
            0,
            0,
            text,
            evidence.collect(),
        ))
    }
}
