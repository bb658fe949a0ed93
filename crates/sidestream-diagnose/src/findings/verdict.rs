//! What the findings come to: savings from a replay, and whether anything is to be gained.

use super::{Code, Finding, Saving, sort};
use crate::idle::{Cause, Idle};
use crate::measure::{DeviceTime, Steps};
use crate::replay::{Change, Replay};

/// Below this part of a step, a change is not worth its trouble.
const GAIN: f64 = 0.05;

/// Takes the savings from a replay, where there is one for them. Bounds from the trace stay.
pub fn simulated(findings: &mut [Finding], replay: &Replay) {
    use Change::{Graphs, NoSync, Pinned, Prefetch, SecondStream, Workers};
    let step_ns = |changes: &[Change]| match changes {
        [] => Some(replay.unprofiled_ns),
        _ => {
            let same = replay.predictions.iter().find(|p| p.changes == changes);
            same.map(|p| p.likely_ns)
        }
    };
    for finding in findings.iter_mut() {
        // What it is worth shows where nothing else is in the way.
        let (without, with): (&[Change], &[Change]) = match finding.code {
            Code::PageableCopy => (&[], &[Pinned]),
            Code::BlockingCopy => (&[Pinned], &[Pinned, NoSync]),
            Code::SyncInStep => (&[], &[NoSync]),
            Code::CopyOnComputeStream => (&[Pinned, NoSync], &[Pinned, Prefetch(2), NoSync]),
            Code::LaunchBound => (&[], &[Graphs]),
            Code::HostStarved => (&[], &[Workers(4)]),
            Code::SerialBranches => (&[], &[SecondStream]),
            _ => continue,
        };
        let (Some(without), Some(with)) = (step_ns(without), step_ns(with)) else {
            continue;
        };
        let old = finding.saving_ns;
        let gain = without.saturating_sub(with);
        let most = replay.measured_ns.saturating_sub(finding.floor_ns);
        finding.saving_ns = match finding.code {
            // Whether the kernels depend on each other, no replay knows.
            Code::SerialBranches => old,
            // Pinned memory and workers also take work from the host that costs no idle time.
            Code::PageableCopy | Code::HostStarved => Saving {
                low: old.low.min(gain / 10 * 9),
                likely: gain.min(most),
                high: old.high.max(gain).min(most),
            },
            // After a wait the profiler is slower than at other times, and the replay with it.
            Code::SyncInStep | Code::BlockingCopy => Saving {
                low: 0,
                likely: gain.min(old.high / 4 * 3),
                high: old.high,
            },
            _ => Saving {
                low: old.low.min(gain / 10 * 9),
                likely: gain.min(old.high),
                high: old.high,
            },
        };
    }
    sort(findings);
}

/// Says so where nothing is worth a change.
pub fn conclude(findings: &mut Vec<Finding>, steps: &Steps, device: &DeviceTime, idle: &Idle) {
    let step_ns = steps.median_ns().unwrap_or(device.span_ns);
    let worth = |f: &Finding| match f.code {
        // Without the profiler, the most of it may be nothing.
        Code::LaunchBound => f.saving_ns.likely,
        _ => f.saving_ns.likely.max(f.saving_ns.high / 2),
    };
    let gain = GAIN * step_ns as f64;
    let together = findings.iter().map(|f| f.saving_ns.likely);
    let together = together.fold(0, u64::saturating_add);
    let most = findings.iter().map(worth).max().unwrap_or(0);
    if most.max(together) as f64 >= gain {
        return;
    }
    let (usual, _) = steps.usual(device);
    let all_ns = usual.total_ns().max(1) as f64;
    let busy = device.busy.shared_ns(&usual) as f64 / all_ns;
    // What looks bad and costs little is named, so that nobody repairs it.
    let causes = [
        (Cause::SyncInStep, "after synchronisations"),
        (Cause::BlockingCopy, "after copies that block"),
        (Cause::PageableCopy, "for copies of pageable memory"),
        (Cause::LaunchBound, "for launches"),
        (Cause::HostStarved, "for data"),
    ];
    let share = |cause| idle.in_steps.get(&cause).copied().unwrap_or(0) as f64 / all_ns;
    let costs: Vec<String> = causes
        .into_iter()
        .filter(|(cause, _)| share(*cause) >= 0.0005)
        .map(|(cause, words)| format!("{:.1} % {words}", 100.0 * share(cause)))
        .collect();
    let costs = match costs.is_empty() {
        true => String::new(),
        false => format!(", and idle for {}", costs.join(", ")),
    };
    findings.push(Finding {
        code: Code::NothingToGain,
        text: format!(
            "no change of streams, copies or waits is worth 5 % of a step; the device is busy for {:.1} % of the \
             time{costs}",
            100.0 * busy
        ),
        share: 0.0,
        saving_ns: Saving::default(),
        floor_ns: step_ns,
        evidence: Vec::new(),
    });
}
