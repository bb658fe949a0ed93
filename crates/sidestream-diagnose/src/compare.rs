//! Compares two traces of one program, such as before and after a change.
//!
//! What devices do in a step is compared by its medians, the time of a step also by all pairs of steps ([`Slowdown`]). Tables
//! cover the whole traces, divided by their number of steps.

mod gate;
mod slowdown;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::findings::Code;
use crate::idle::Cause;
use crate::measure::{Line, PerStep, add};
use crate::report::{LISTED, Report};
use crate::sort::order_by;

pub use gate::{Gate, Verdict};
pub use slowdown::Slowdown;

/// The version of the JSON of a comparison.
pub const COMPARE_SCHEMA: &str = "sidestream.diagnose.compare/1";

/// A trace compared with a baseline.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// A step in the trace and in the baseline; the whole traces, if neither has steps.
    pub per_step: Two<PerStep>,
    /// The time of a step relative to the baseline, with bounds; or why there are none.
    pub slowdown: Result<Slowdown, String>,
    /// How the traces differ in what makes their times comparable: devices, profilers, how steps were found.
    pub unlike: Vec<String>,
    /// Mean idle time of a step by cause, in nanoseconds.
    pub idle: Vec<(Cause, Two<u64>)>,
    /// Mean idle time of a step by cause and by the call or range that caused it, in nanoseconds.
    pub reasons: BTreeMap<(Cause, String), Two<u64>>,
    /// Calls that blocked the host, with their time in a step; those that changed most first.
    pub blocking: Vec<Shift>,
    /// All kernels by name.
    pub kernels: Vec<Shift>,
    /// All operators by name, with their self time: without that of the operators inside them.
    pub operators: Vec<Shift>,
    /// Findings of the baseline that the trace no longer has.
    pub gone: Vec<Code>,
    /// Findings of the trace that the baseline did not have.
    pub new: Vec<Code>,
    /// Findings that both have.
    pub same: Vec<Code>,
    /// Notes that a reader needs to judge the comparison.
    pub notes: Vec<String>,
}

/// One figure of both traces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Two<T> {
    /// The figure of the trace.
    pub now: T,
    /// The figure of the baseline.
    pub baseline: T,
}

impl Two<u64> {
    /// Returns how much larger the figure is now; negative if it is smaller.
    pub fn change(self) -> i64 {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        signed(self.now).saturating_sub(signed(self.baseline))
    }
}

/// The calls and the time of one name in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shift {
    /// The name.
    pub name: String,
    /// Mean number of calls in a step. Without calls in one trace, the name is new or gone.
    pub calls: Two<f64>,
    /// Total time of the calls, in nanoseconds.
    pub ns: Two<u64>,
}

impl Comparison {
    /// Compares a trace with a baseline.
    ///
    /// # Errors
    /// Why the two traces cannot be compared, in one sentence.
    pub fn of(now: &Report, baseline: &Report) -> Result<Comparison, &'static str> {
        let per_step = Two {
            now: now.per_step,
            baseline: baseline.per_step,
        };
        match (per_step.now.steps, per_step.baseline.steps) {
            (0, 1..) => {
                return Err(
                    "the trace has no steps and the baseline has; trace more than one step of both, or \
                     mark them, with the profiler's schedule or a range",
                );
            }
            (1.., 0) => {
                return Err(
                    "the baseline has no steps and the trace has; trace more than one step of both, or \
                     mark them, with the profiler's schedule or a range",
                );
            }
            _ => {}
        }
        let both = Two { now, baseline };
        let has = |report: &Report, code: Code| report.findings.iter().any(|f| f.code == code);
        let codes = |of: &Report, other: &Report, in_both: bool| -> Vec<Code> {
            let codes = of.findings.iter().map(|finding| finding.code);
            codes.filter(|code| has(other, *code) == in_both).collect()
        };
        Ok(Comparison {
            per_step,
            slowdown: slowdown(both),
            unlike: unlike(both),
            idle: idle(both),
            reasons: merged(both, reasons),
            blocking: shifts(both, |report| {
                let each = report.blocking.iter();
                each.map(|b| (report.names.text(b.name), b.count as f64, b.duration_ns))
                    .collect()
            }),
            kernels: shifts(both, |report| {
                // The mean of one device, as for every other figure about devices.
                let devices = report.devices.len().max(1);
                let lines = lines(report, &report.kernels).into_iter();
                lines
                    .map(|(name, calls, ns)| {
                        (name, calls as f64 / devices as f64, ns / devices as u64)
                    })
                    .collect()
            }),
            operators: shifts(both, |report| {
                let lines = lines(report, &report.operators).into_iter();
                lines
                    .map(|(name, calls, ns)| (name, calls as f64, ns))
                    .collect()
            }),
            gone: codes(baseline, now, false),
            new: codes(now, baseline, false),
            same: codes(now, baseline, true),
            notes: notes(both),
        })
    }

    /// Returns the time of a step now, relative to the baseline; `None` if the baseline's step took no time.
    pub fn ratio(&self) -> Option<f64> {
        let Two { now, baseline } = self.per_step;
        (baseline.time_ns > 0).then(|| now.time_ns as f64 / baseline.time_ns as f64)
    }

    /// Returns the comparison as JSON; docs/guide/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        let Two { now, baseline } = &self.per_step;
        let codes = |codes: &[Code]| codes.iter().map(|code| code.as_str()).collect::<Vec<_>>();
        let idle = self.idle.iter().map(|(cause, ns)| {
            let value =
                json!({"now_ns": ns.now, "baseline_ns": ns.baseline, "change_ns": ns.change()});
            (cause.as_str().to_owned(), value)
        });
        let shift = |shift: &Shift| {
            json!({"name": shift.name, "now_calls": shift.calls.now,
                   "baseline_calls": shift.calls.baseline, "now_ns": shift.ns.now,
                   "baseline_ns": shift.ns.baseline, "change_ns": shift.ns.change()})
        };
        let shifts = |list: &[Shift]| list.iter().take(LISTED).map(shift).collect::<Vec<_>>();
        json!({
            "schema": COMPARE_SCHEMA,
            "per": if now.steps > 0 { "step" } else { "trace" },
            "now": now,
            "baseline": baseline,
            "change_ns": Two { now: now.time_ns, baseline: baseline.time_ns }.change(),
            "ratio": self.ratio(),
            "slowdown": self.slowdown.as_ref().ok(),
            "idle_by_cause": idle.collect::<Map<String, Value>>(),
            "blocking": shifts(&self.blocking),
            "kernels": shifts(&self.kernels),
            "operators": shifts(&self.operators),
            "findings": {"gone": codes(&self.gone), "new": codes(&self.new),
                         "same": codes(&self.same)},
            "notes": self.notes,
        })
    }
}

fn slowdown(both: Two<&Report>) -> Result<Slowdown, String> {
    if both.now.per_step.steps == 0 {
        return Err(
            "neither trace has steps; mark them, with the profiler's schedule or a range"
                .to_owned(),
        );
    }
    Slowdown::of(
        &both.now.steps.periods_ns(),
        &both.baseline.steps.periods_ns(),
    )
}

fn idle(both: Two<&Report>) -> Vec<(Cause, Two<u64>)> {
    let causes = merged(both, Report::idle_per_step);
    let mut causes: Vec<_> = causes.into_iter().collect();
    order_by(&mut causes, |(cause, ns)| {
        (Reverse(ns.change().unsigned_abs()), *cause)
    });
    causes
}

/// Returns the idle time of a step by cause and by the call or range that caused it.
fn reasons(report: &Report) -> BTreeMap<(Cause, String), u64> {
    let mut reasons = BTreeMap::new();
    for ((cause, because), (_, ns)) in report.devices.iter().flat_map(|(_, idle)| &idle.reasons) {
        let text = |name| report.names.text(name);
        let inside = because.inside.iter().flatten().next_back();
        let name = match inside {
            Some(inside) => format!("{} in {}", text(because.name), text(*inside)),
            None => text(because.name).to_owned(),
        };
        add(reasons.entry((*cause, name)).or_default(), *ns);
    }
    let parts = report.parts();
    reasons.values_mut().for_each(|ns| *ns /= parts);
    reasons
}

fn merged<K: Ord>(
    both: Two<&Report>,
    of: impl Fn(&Report) -> BTreeMap<K, u64>,
) -> BTreeMap<K, Two<u64>> {
    let mut all: BTreeMap<K, Two<u64>> = BTreeMap::new();
    for (key, ns) in of(both.now) {
        all.entry(key).or_default().now = ns;
    }
    for (key, ns) in of(both.baseline) {
        all.entry(key).or_default().baseline = ns;
    }
    all
}

fn lines<'r>(report: &'r Report, lines: &[Line]) -> Vec<(&'r str, usize, u64)> {
    let each = lines.iter();
    each.map(|line| (report.names.text(line.name), line.calls, line.self_ns))
        .collect()
}

/// Returns the names of a table with their calls and times per step in both traces; those that changed most first.
fn shifts(both: Two<&Report>, table: fn(&Report) -> Vec<(&str, f64, u64)>) -> Vec<Shift> {
    let mut shifts: BTreeMap<&str, Shift> = BTreeMap::new();
    let steps = |report: &Report| report.per_step.steps.max(1);
    for (name, calls, ns) in table(both.now) {
        let shift = shifts.entry(name).or_default();
        shift.calls.now = calls / steps(both.now) as f64;
        shift.ns.now = ns / steps(both.now) as u64;
    }
    for (name, calls, ns) in table(both.baseline) {
        let shift = shifts.entry(name).or_default();
        shift.calls.baseline = calls / steps(both.baseline) as f64;
        shift.ns.baseline = ns / steps(both.baseline) as u64;
    }
    let named = shifts.into_iter().map(|(name, shift)| Shift {
        name: name.to_owned(),
        ..shift
    });
    let mut shifts: Vec<Shift> = named.collect();
    order_by(&mut shifts, |shift| {
        Reverse(shift.ns.change().unsigned_abs())
    });
    shifts
}

/// Returns how the two traces differ in what makes their times comparable.
fn unlike(both: Two<&Report>) -> Vec<String> {
    let mut unlike = Vec::new();
    let Two { now, baseline } = both;
    let devices = |report: &Report| {
        let names = report.devices.iter().map(|(device, _)| &*device.name);
        names.collect::<Vec<_>>().join(", ")
    };
    let (these, those) = (devices(now), devices(baseline));
    if these != those {
        let named = |names: String| {
            if names.is_empty() {
                "devices without a name".to_owned()
            } else {
                names
            }
        };
        let (these, those) = (named(these), named(those));
        unlike.push(format!(
            "the devices differ: {these} now, {those} in the baseline"
        ));
    }
    if now.source != baseline.source {
        let (this, that) = (now.source.as_str(), baseline.source.as_str());
        unlike.push(format!(
            "the profilers differ, and each slows down a program in its own way: {this} now, {that} in \
             the baseline"
        ));
    }
    let (these, those) = (now.steps.by.as_str(), baseline.steps.by.as_str());
    if these != those {
        unlike.push(format!(
            "the steps were found in different ways: by {these} now, by {those} in the baseline"
        ));
    }
    unlike
}

fn notes(both: Two<&Report>) -> Vec<String> {
    let mut notes = Vec::new();
    let Two { now, baseline } = both;
    if now.per_step.steps == 0 {
        notes.push("neither trace has steps: all figures are of the whole traces".to_owned());
    }
    notes.extend(unlike(both));
    for (report, whose) in [(now, "now"), (baseline, "in the baseline")] {
        // A trace with too little work to be judged can still be compared.
        let warnings = report
            .warnings
            .iter()
            .filter(|warning| warning.code != "TOO_LITTLE");
        for warning in warnings {
            notes.push(format!("{whose}: {}", warning.text));
        }
    }
    notes
}
