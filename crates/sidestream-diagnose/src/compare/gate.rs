//! Whether a step takes longer than a gate allows, and what grew.

use serde_json::{Value, json};

use super::{Comparison, Shift, Two};
use crate::findings::time;
use crate::measure::PerStep;
use crate::words::words;

words! {
    /// What a gate says.
    pub enum Verdict {
        /// A step does not take longer than the gate allows, as far as the steps show.
        Passed = "passed",
        /// It does.
        Failed = "failed",
        /// The traces do not tell.
        Unknown = "unknown",
    }
}

/// The verdict on a comparison.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The slowdown that is allowed, in percent.
    pub percent: f64,
    /// Whether more is shown.
    pub verdict: Verdict,
    /// The reason, in a sentence.
    pub why: String,
    /// What grew most in a step, where the gate failed.
    pub cause: Option<String>,
}

/// How far above the gate the upper bound of a slowdown may be: further, the traces do not tell.
const UNSURE: f64 = 0.25;

impl Gate {
    /// Judges a comparison, or the reason why there is none.
    pub fn of(compared: Result<&Comparison, &str>, percent: f64) -> Gate {
        let told = compared.map_err(str::to_owned).and_then(|compared| {
            if let Some(unlike) = compared.unlike.first() {
                return Err(format!("{unlike}; record both alike"));
            }
            Ok((compared, compared.slowdown.clone()?))
        });
        let (compared, slowdown) = match told {
            Ok(told) => told,
            Err(why) => {
                return Gate {
                    percent,
                    verdict: Verdict::Unknown,
                    why,
                    cause: None,
                };
            }
        };
        let most = 1.0 + percent / 100.0;
        let is_slower = slowdown.low > most;
        // A step that takes twice as long must not pass because no bound can be given.
        let is_unsure = !is_slower && slowdown.high > most + UNSURE;
        let more = if is_unsure {
            "; the steps vary so much that a large slowdown would not show: record more steps"
        } else if slowdown.ratio > most && !is_slower {
            "; that may be chance, and more steps would tell"
        } else {
            ""
        };
        let Two { now, baseline } = compared.per_step;
        let change = |ratio: f64| 100.0 * (ratio - 1.0);
        Gate {
            percent,
            verdict: if is_slower {
                Verdict::Failed
            } else if is_unsure {
                Verdict::Unknown
            } else {
                Verdict::Passed
            },
            why: format!(
                "the step changed by {:+.1} % (from {:+.1} to {:+.1} % with 99 % confidence; median {}, before {}){more}",
                change(slowdown.ratio),
                change(slowdown.low),
                change(slowdown.high),
                time(now.time_ns),
                time(baseline.time_ns)
            ),
            cause: if is_slower { cause(compared) } else { None },
        }
    }

    /// Returns the verdict as JSON; docs/guide/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        json!({"percent": self.percent, "verdict": self.verdict.as_str(), "why": self.why, "cause": self.cause})
    }
}

/// Returns what grew most in a step, and the name that grew most in it.
fn cause(compared: &Comparison) -> Option<String> {
    let Two { now, baseline } = compared.per_step;
    let change = |of: fn(&PerStep) -> u64| {
        Two {
            now: of(&now),
            baseline: of(&baseline),
        }
        .change()
    };
    let communication = change(|step| step.exposed_communication_ns);
    let kernels = change(|step| step.kernel_ns).saturating_sub(communication);
    let copies = change(|step| step.exposed_copy_ns);
    let parts = [
        (kernels, "time of kernels"),
        (communication, "communication that nothing hides"),
        (copies, "copies that no kernel hides"),
        (change(|step| step.idle_ns), "idle time"),
    ];
    let (ns, part) = parts.into_iter().max_by_key(|(ns, _)| *ns)?;
    let detail = match part {
        "idle time" => of_idle(compared),
        "time of kernels" => of_kernels(ns, &compared.kernels),
        "copies that no kernel hides" => hidden(ns, change(|step| step.copy_ns)),
        _ => hidden(ns, change(|step| step.communication_ns)),
    };
    (ns > 0).then(|| {
        let (ns, all) = (longer(ns), longer(change(|step| step.time_ns)));
        format!("{part} grew by {ns} of {all} a step{detail}")
    })
}

fn longer(ns: i64) -> String {
    time(ns.max(0).unsigned_abs())
}

/// Returns the name whose time grew most, with its calls.
fn most(shifts: &[Shift]) -> String {
    let most = shifts.iter().max_by_key(|shift| shift.ns.change());
    let Some(most) = most.filter(|most| most.ns.change() > 0) else {
        return String::new();
    };
    let Two { now, baseline } = most.calls;
    let calls = if now == baseline {
        String::new()
    } else {
        format!(", {now:.1} calls instead of {baseline:.1}")
    };
    format!(
        ", most in {} (+{}{calls})",
        most.name,
        longer(most.ns.change())
    )
}

/// Returns the kernel that grew most, unless kernels take longer only because fewer of them run at once.
fn of_kernels(ns: i64, kernels: &[Shift]) -> String {
    let each = kernels.iter().map(|kernel| kernel.ns.change());
    if 2 * each.fold(0, i64::saturating_add) < ns {
        ": they take as long as before, but fewer of them run at once".to_owned()
    } else {
        most(kernels)
    }
}

/// Returns the cause of idle time that grew most, and what it was due to.
fn of_idle(compared: &Comparison) -> String {
    let most_idle = compared.idle.iter().max_by_key(|(_, ns)| ns.change());
    let Some((cause, _)) = most_idle.filter(|(_, ns)| ns.change() > 0) else {
        return String::new();
    };
    let reasons = compared.reasons.iter().filter(|((of, _), _)| of == cause);
    let name = match reasons.max_by_key(|(_, ns)| ns.change()) {
        Some(((_, name), ns)) if ns.change() > 0 => {
            format!(", most in {name} (+{})", longer(ns.change()))
        }
        _ => most(&compared.operators),
    };
    format!(": {} ({}){name}", cause.as_str(), cause.told().0)
}

/// Returns whether work takes longer, or is no longer hidden behind other work.
fn hidden(exposed_ns: i64, all_ns: i64) -> String {
    if 2 * all_ns < exposed_ns {
        ": they take as long as before, but less of it is hidden".to_owned()
    } else {
        format!(": they take {} longer", longer(all_ns))
    }
}
