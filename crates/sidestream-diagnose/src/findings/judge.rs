//! The list of judged changes, and what follows from it: the findings in their order, and the verdict that nothing is to be
//! gained.

use std::cmp::Reverse;

use super::view::View;
use super::{Code, Evidence, Finding, Ground, Grounds, Saving, time};
use crate::idle::{Cause, Idle};
use crate::measure::{DeviceTime, add};
use crate::model::{Memory, Trace, What};
use crate::replay::{Change, Prediction, Replay};

/// A change that gains less than this part of a step is not worth its effort.
const GAIN: f64 = 0.05;
/// From a predicted gain of this part of a step on, a gain of 5 % is possible, and no report says that nothing is to be gained.
const NOTHING: f64 = 0.04;
/// A finding below this part of a step is not worth a line.
const WORTH: f64 = 0.02;
/// Two gains that differ by less than this part count as equal.
const ALIKE: f64 = 0.15;
/// A device that is idle for more than this part of its time has something to gain.
const IDLE: f64 = 0.10;
/// A trace with fewer GPU operations is too small to judge.
const LEAST_WORK: usize = 10;

/// A change that was tried, with the cause that it removes and its gain.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The cause that it removes.
    pub code: Code,
    /// The changes, made together.
    pub changes: Vec<Change>,
    /// The changes among these that are assumed to be made already; the gain is relative to them.
    pub on_top_of: Vec<Change>,
    /// Time by which it shortens a step.
    pub gain_ns: Saving,
    /// Whether the change helps only if work does not depend on other work, which no trace shows.
    pub is_conditional: bool,
}

impl Judged {
    /// Returns the value for sorting: the likely gain; where that is unknown, the high end.
    fn worth(&self) -> (u64, u64) {
        key(self.gain_ns, self.is_conditional)
    }
}

/// The figures by which the list is ordered.
struct Order {
    /// How long the device waited for launches.
    launches_ns: u64,
    step_ns: u64,
}

impl Order {
    /// Returns the sort key; the greatest comes first. Changes that gain 5 % by themselves come before those that gain less, or
    /// that gain only on top of others. Within both classes, the gain decides. A graph replaces all of the host's work for its
    /// launches, regardless of the cause of the wait: it counts for at most the time that the device waited for launches.
    fn place(&self, code: Code, worth: (u64, u64), is_alone: bool) -> (bool, u64, u64) {
        let (ns, high) = match code {
            Code::LaunchBound => (worth.0.min(self.launches_ns), worth.1),
            _ => worth,
        };
        let is_first = is_alone && ns as f64 >= GAIN * self.step_ns as f64;
        (is_first, ns, high)
    }
}

fn key(gain: Saving, is_conditional: bool) -> (u64, u64) {
    match gain.likely {
        0 if is_conditional => (0, gain.high),
        0 => (gain.high, gain.high),
        likely => (likely, gain.high),
    }
}

/// Returns all changes that a replay tried independently and that gain anything, the most valuable first; one for each code.
pub fn judge(
    grounds: &Grounds,
    (device, idle): (&DeviceTime, &Idle),
    replay: &Replay,
) -> Vec<Judged> {
    let trace = grounds.trace;
    let copies_on_compute = are_copies_on_compute(trace);
    let own = replay.predictions.len() - replay.asked;
    let tried = &replay.predictions[..own];
    let (least, most) = replay.unprofiled_between_ns;
    let base = [least, replay.unprofiled_ns, most];
    let bare_copies_ns = bare_copies_ns(grounds, (device, idle));
    let mut judged: Vec<Judged> = Vec::new();
    for prediction in tried.iter().filter(|p| p.is_effective) {
        let (before, over) = part_of(prediction, tried, base);
        let (low, likely, high) = prediction.gain_over(over);
        let added = prediction.changes.iter().filter(|c| !before.contains(c));
        let is_prefetch = |change: &&Change| matches!(change, Change::Prefetch(_));
        // If a set of changes contains a prefetch, the set counts as a prefetch, unless its gain is longer than the time in
        // which the copies run without a concurrent kernel.
        let first = if likely > bare_copies_ns {
            added.clone().find(|change| !is_prefetch(change))
        } else {
            added.clone().find(is_prefetch)
        };
        let Some(added) = first.or(added.clone().next()) else {
            continue;
        };
        if likely == 0 {
            continue;
        }
        let is_conditional = prediction.changes.iter().any(Change::is_conditional);
        // The gain of a change that depends on more than the trace shows may be zero.
        let gain_ns = match is_conditional {
            true => Saving::at_most(high),
            false if matches!(added, Change::DropWait(..)) => Saving {
                low: 0,
                likely,
                high,
            },
            false => Saving { low, likely, high },
        };
        let one = Judged {
            code: Code::of(added, copies_on_compute),
            changes: prediction.changes.clone(),
            on_top_of: before,
            gain_ns,
            is_conditional,
        };
        match judged.iter_mut().find(|known| known.code == one.code) {
            // A change that gains by itself is better evidence than one that gains only on top of others.
            Some(known) if known.worth() >= one.worth() => {}
            Some(known) if known.on_top_of.is_empty() && is_worth(known, replay) => {}
            Some(known) => *known = one,
            None => judged.push(one),
        }
    }
    // Two changes remove a wait for a download. If their gains are alike, only the one is kept to whose cause more idle time
    // was attributed.
    let (_, count) = grounds.steps.all(device);
    let idle_ns = |cause| idle.in_steps.get(&cause).copied().unwrap_or(0) / count.max(1);
    let likely = |code| {
        judged
            .iter()
            .find(|one| one.code == code)
            .map(|one| one.gain_ns.likely)
    };
    if let (Some(sync), Some(copy)) = (likely(Code::SyncInStep), likely(Code::BlockingCopy))
        && sync.abs_diff(copy) as f64 <= ALIKE * sync.max(copy) as f64
    {
        let other = if idle_ns(Cause::SyncInStep) < idle_ns(Cause::BlockingCopy) {
            Code::SyncInStep
        } else {
            Code::BlockingCopy
        };
        judged.retain(|one| one.code != other);
    }
    let order = Order {
        launches_ns: idle_ns(Cause::LaunchBound),
        step_ns: replay.unprofiled_ns,
    };
    judged.sort_by_key(|one| Reverse(order.place(one.code, one.worth(), one.on_top_of.is_empty())));
    judged
}

/// Returns how long the copies of a step run without a concurrent kernel, with the device's latency before and after them.
fn bare_copies_ns(grounds: &Grounds, (device, idle): (&DeviceTime, &Idle)) -> u64 {
    let view = View::of(grounds, device, idle);
    let copies = view.spans_ns(&view.uploads);
    let copies = copies.saturating_add(view.spans_ns(&view.downloads));
    let waits = [Cause::DeviceLatency, Cause::PageableCopy, Cause::StreamWait];
    let waits = waits.map(|cause| view.idle_ns(cause));
    waits.into_iter().fold(copies, u64::saturating_add)
}

fn is_worth(judged: &Judged, replay: &Replay) -> bool {
    judged.worth().0 as f64 >= WORTH * replay.unprofiled_ns as f64
}

/// Returns the largest tried subset of a set of changes, and the time of a step with it. Of several such subsets, it takes the
/// best.
fn part_of(of: &Prediction, tried: &[Prediction], base: [u64; 3]) -> (Vec<Change>, [u64; 3]) {
    let is_part = |p: &&Prediction| {
        p.changes.len() < of.changes.len() && p.changes.iter().all(|c| of.changes.contains(c))
    };
    let parts = tried.iter().filter(is_part);
    let best = parts.min_by_key(|p| (Reverse(p.changes.len()), p.likely_ns));
    best.map_or((Vec::new(), base), |p| {
        (p.changes.clone(), p.by_profiler_ns)
    })
}

/// Returns whether copies between host and device are in a stream that has most of its device's kernels.
fn are_copies_on_compute(trace: &Trace) -> bool {
    let mut kernel_ns = vec![0u64; trace.streams.len()];
    let mut copy_ns = vec![0u64; trace.streams.len()];
    for work in &trace.work {
        let sums = match (work.what, work.host_memory()) {
            (What::Kernel(_), _) => &mut kernel_ns,
            (_, Some(memory)) if memory != Memory::Managed => &mut copy_ns,
            _ => continue,
        };
        add(&mut sums[work.stream.0 as usize], work.duration_ns);
    }
    let all: u128 = copy_ns.iter().map(|ns| u128::from(*ns)).sum();
    let beside = copy_ns
        .iter()
        .zip(&kernel_ns)
        .filter(|(_, kernels)| **kernels > 0);
    let beside: u128 = beside.map(|(copies, _)| u128::from(*copies)).sum();
    2 * beside >= all
}

/// Returns the findings of a trace, from the judged changes and from the evidence about one device.
pub fn findings(
    grounds: &Grounds,
    (device, idle): (&DeviceTime, &Idle),
    judged: &[Judged],
    replay: Option<&Replay>,
) -> Vec<Finding> {
    let view = View::of(grounds, device, idle);
    let step_ns = replay.map_or(view.step_ns, |replay| replay.unprofiled_ns);
    let mut said = grounds.of(&view);
    if device.gpu_ops < LEAST_WORK && grounds.steps.mean_ns().is_none() {
        said.clear();
    }
    for ground in said.iter_mut().filter(|one| one.code == Code::LaunchBound) {
        ground.text.push_str(&fused(replay));
    }
    let order = Order {
        launches_ns: view.idle_ns(Cause::LaunchBound),
        step_ns,
    };
    let mut findings: Vec<(Finding, bool)> = Vec::new();
    for one in judged.iter().filter(|_| !grounds.is_launch_blocking) {
        let at = said.iter().position(|ground| ground.code == one.code);
        let ground = at.map(|at| said.swap_remove(at));
        let worth_ns = if one.is_conditional {
            one.gain_ns.high
        } else {
            one.gain_ns.likely
        };
        if (worth_ns as f64) < WORTH * step_ns as f64 {
            // The change was tried, and gains next to nothing.
            if let Some(ground) = ground.filter(|ground| ground.is_worth && !one.is_conditional) {
                findings.push((finding(ground, one, step_ns), one.is_conditional));
            }
            continue;
        }
        let ground = match ground {
            Some(ground) => ground,
            // No trace shows whether the change helps, and the replay shows that it hardly can.
            None if one.is_conditional => continue,
            None => bare(&view, one),
        };
        findings.push((finding(ground, one, step_ns), one.is_conditional));
    }
    for ground in said.into_iter().filter(|ground| ground.is_worth) {
        let conditional = ground.code.is_conditional();
        if conditional && replay.is_some() {
            // The change was tried, and gains nothing.
            continue;
        }
        let was_tried =
            ground.is_of_its_change && replay.is_some_and(|replay| was_tried(ground.code, replay));
        let mut ground = ground;
        if was_tried && ground.code == Code::LaunchBound {
            ground.text.push_str(
                ", but by itself that gains nothing in the replay, as where the host waits between the launches",
            );
        }
        let saving_ns = Saving::at_most(if was_tried { 0 } else { ground.most_ns });
        findings.push((of_ground(ground, Vec::new(), saving_ns), conditional));
    }
    let is_alone = |code| {
        let mut judged = judged.iter();
        judged.all(|one| one.code != code || one.on_top_of.is_empty())
    };
    findings.sort_by_key(|(finding, conditional)| {
        let worth = key(finding.saving_ns, *conditional);
        // The upper bound for launches ranks after the gains that a replay predicts for other changes.
        let is_open =
            finding.code == Code::LaunchBound && finding.changes.is_empty() && replay.is_some();
        let is_alone = is_alone(finding.code) && !is_open;
        Reverse(order.place(finding.code, worth, is_alone))
    });
    let conclusion = replay.and_then(|replay| nothing_to_gain(&view, &findings, replay));
    let mut findings: Vec<Finding> = findings.into_iter().map(|(finding, _)| finding).collect();
    if !grounds.is_launch_blocking {
        findings.extend(view.excluded(Cause::Startup, Code::Startup));
        findings.extend(view.excluded(Cause::Initialisation, Code::Initialisation));
        findings.extend(view.excluded(Cause::ProfilerOverhead, Code::ProfilerOverhead));
        findings.extend(conclusion);
    }
    findings
}

/// Returns a note on what fused operators gain by themselves, for the part of a step where they gain most.
fn fused(replay: Option<&Replay>) -> String {
    let Some(replay) = replay else {
        return String::new();
    };
    let own = replay.predictions.len() - replay.asked;
    let tried = replay.predictions[..own]
        .iter()
        .filter(|p| p.is_effective && matches!(p.changes[..], [Change::Fused(_)]));
    let gain_ns = |p: &Prediction| replay.unprofiled_ns.saturating_sub(p.likely_ns);
    match tried.max_by_key(|p| gain_ns(p)) {
        Some(best) if gain_ns(best) as f64 >= WORTH * replay.unprofiled_ns as f64 => format!(
            "; in the replay `{}` by itself, a few launches in the place of all in that range, makes a step {} shorter",
            Change::names(&best.changes),
            time(gain_ns(best)),
        ),
        _ => String::new(),
    }
}

/// Returns whether a change that removes this cause was tried, and gained nothing or found nothing to change.
fn was_tried(of: Code, replay: &Replay) -> bool {
    let own = replay.predictions.len() - replay.asked;
    replay.predictions[..own].iter().any(|p| {
        let [change] = &p.changes[..] else {
            return false;
        };
        let is_wait = matches!(of, Code::StreamWait | Code::HostWork) && !p.is_effective;
        !is_wait && (Code::of(change, true) == of || Code::of(change, false) == of)
    })
}

fn of_ground(ground: Ground, changes: Vec<Change>, saving_ns: Saving) -> Finding {
    Finding {
        code: ground.code,
        text: ground.text,
        share: ground.share,
        changes,
        saving_ns,
        floor_ns: ground.floor_ns,
        evidence: ground.evidence,
    }
}

fn finding(ground: Ground, judged: &Judged, step_ns: u64) -> Finding {
    let mut found = of_ground(ground, judged.changes.clone(), judged.gain_ns);
    let saving = &mut found.saving_ns;
    saving.high = saving.high.min(step_ns);
    saving.likely = saving.likely.min(saving.high);
    saving.low = saving.low.min(saving.likely);
    found.floor_ns = step_ns - saving.high;
    if !judged.on_top_of.is_empty() {
        found.text = format!(
            "{}; together with {}, and over what that gains alone",
            found.text,
            Change::names(&judged.on_top_of)
        );
    }
    found
}

/// Returns the evidence for a change that gains although no single stretch of idle time stands out for it.
fn bare(view: &View, judged: &Judged) -> Ground {
    let text = format!(
        "the replay with {} is faster, though no single stretch of idle time stands out for it",
        Change::names(&judged.changes)
    );
    let longest: Vec<Evidence> = view.longest_calls(|_| true);
    view.ground(
        judged.code,
        judged.gain_ns.likely,
        judged.gain_ns.high,
        0,
        text,
        longest,
    )
}

/// Returns the finding that nothing is to be gained: never for a device that is often idle, if another change gains, or if no
/// change was tried.
fn nothing_to_gain(view: &View, findings: &[(Finding, bool)], replay: &Replay) -> Option<Finding> {
    let (device, idle) = (view.device, view.idle);
    let span_ns = device.span_ns.max(1) as f64;
    if device.idle_ns() as f64 > IDLE * span_ns || device.gpu_ops < LEAST_WORK {
        return None;
    }
    let whole_ns = replay.unprofiled_ns;
    let gain_ns = NOTHING * whole_ns as f64;
    let promised = findings.iter().map(|(f, _)| match f.saving_ns.likely {
        0 => f.saving_ns.high,
        likely => likely,
    });
    let known = replay.predictions.iter();
    let known = known.filter(|p| !p.changes.iter().any(Change::is_conditional));
    let predicted = known.map(|p| replay.unprofiled_ns.saturating_sub(p.likely_ns));
    if promised.chain(predicted).any(|ns| ns as f64 >= gain_ns) {
        return None;
    }
    // Causes that look bad but cost little are named, so that users do not spend effort on them.
    let causes = [
        (Cause::SyncInStep, "after synchronisations"),
        (Cause::BlockingCopy, "after copies that block"),
        (Cause::PageableCopy, "for copies of pageable memory"),
        (Cause::LaunchBound, "for launches"),
        (Cause::HostStarved, "for data"),
        (Cause::HostWork, "for the host's own work"),
        (Cause::StreamWait, "for streams and events"),
    ];
    let share = |ns: u64| 100.0 * ns as f64 / view.all.total_ns().max(1) as f64;
    let of = |cause| share(idle.in_steps.get(&cause).copied().unwrap_or(0));
    let costs: Vec<String> = causes
        .into_iter()
        .filter(|(cause, _)| of(*cause) >= 0.05)
        .map(|(cause, words)| format!("{:.1} % {words}", of(cause)))
        .collect();
    let costs = if costs.is_empty() {
        String::new()
    } else {
        format!(", and idle for {}", costs.join(", "))
    };
    Some(Finding {
        code: Code::NothingToGain,
        text: format!(
            "no change of streams, copies or waits is worth 5 % of a step; in the time of the steps the device is busy for \
             {:.1} %{costs}",
            share(device.busy.shared_ns(&view.all))
        ),
        share: 0.0,
        changes: Vec::new(),
        saving_ns: Saving::default(),
        floor_ns: whole_ns,
        evidence: Vec::new(),
    })
}
