//! Warnings about a trace, and about the results.

use crate::findings::time;
use crate::idle::{Cause, Idle};
use crate::measure::{DeviceTime, Launches, Links, copies, lost_of_graphs, sampled};
use crate::model::{Base, Direction, Memory, Trace, Warning};
use crate::replay::{Change, Replay};

/// Returns a warning where changes were asked for that cannot be predicted for a trace with workers, or without.
pub fn unpredictable(sets: &[Vec<Change>], has_workers: bool) -> Option<Warning> {
    let why = if has_workers {
        "batches come from workers already, and how many there are is not in the trace; ask for more-workers=N, N times as many"
    } else {
        "the trace shows no data loader workers, so there is no number to multiply; ask for workers=N"
    };
    let names: Vec<String> = sets.iter().map(|set| Change::names(set)).collect();
    (!names.is_empty()).then(|| Warning {
        code: "WORKERS",
        text: format!("{} cannot be predicted: {why}", names.join("; ")),
    })
}

/// Returns a warning where the steps timed before the profiler started are not comparable with the recorded ones.
pub fn unlike(base: &Base, replay: &Replay) -> Option<Warning> {
    let Base::Measured(measured) = base else {
        return None;
    };
    let is_left_out = replay.is_ok() && replay.base == Base::Estimated;
    is_left_out.then(|| Warning {
        code: "BASE",
        text: format!(
            "the step of {} that was timed before the profiler started is left out of the predictions: the steps that were \
             recorded take {}, and {} by the estimate without the profiler, so the two are not comparable",
            time(measured.median_ns),
            time(replay.measured_ns),
            time(replay.unprofiled_ns)
        ),
    })
}

/// Returns a warning where much of the idle time has no cause, with the reason.
pub fn unexplained(
    trace: &Trace,
    devices: &[DeviceTime],
    idles: &[Idle],
    orphans: usize,
) -> Option<Warning> {
    if sampled(trace).is_some() {
        return None;
    }
    let span: u128 = devices
        .iter()
        .map(|device| u128::from(device.span_ns))
        .sum();
    let without = idles
        .iter()
        .filter_map(|idle| idle.by_cause.get(&Cause::Unattributed));
    let without: u128 = without.map(|ns| u128::from(*ns)).sum();
    let percent = 100.0 * without as f64 / span.max(1) as f64;
    // Submitted work has a call to which the time is attributed.
    let late = idles.iter().flat_map(|idle| &idle.reasons);
    let late = late.filter(|((cause, _), _)| *cause == Cause::Unattributed);
    let most = late.clone().max_by_key(|(_, (_, ns))| *ns);
    let late: u128 = late.map(|(_, (_, ns))| u128::from(*ns)).sum();
    let why = match (most, orphans) {
        (Some(((_, because), _)), _) if 2 * late >= without => format!(
            "work that had been submitted, most of all by {}, started late, with no wait placed before it; the trace does not show \
             why: code that is loaded, page faults, or work missing from the trace",
            trace.names.text(because.name)
        ),
        (_, 0) => "the trace ends before the next work was submitted".to_owned(),
        _ => "the work after it has no call in the trace".to_owned(),
    };
    (percent >= 10.0).then(|| Warning {
        code: "UNATTRIBUTED",
        text: format!(
            "for {percent:.1} % of the time the devices are idle and the cause is not known: {why}"
        ),
    })
}

/// Returns the warnings about the trace itself.
pub fn doubts(
    trace: &Trace,
    links: &Links,
    is_launch_blocking: bool,
    launches: &Launches,
) -> Vec<Warning> {
    let mut doubts = Vec::new();
    let mut doubt = |code, text: String| doubts.push(Warning { code, text });
    if !trace.work.is_empty() && trace.work.len() < 10 {
        let (count, s) = (
            trace.work.len(),
            if trace.work.len() == 1 { "" } else { "s" },
        );
        doubt(
            "TOO_LITTLE",
            format!("the trace has {count} GPU operation{s}: too few to judge a program by"),
        );
    }
    if trace.calls.is_empty() {
        let text =
            "the trace has no calls of the host: why the device was idle cannot be determined";
        doubt("NO_HOST_ROWS", text.to_owned());
    } else if launches.orphans > 0 {
        let (orphans, all) = (launches.orphans, trace.work.len());
        doubt(
            "ORPHANS",
            format!("the calls of {orphans} of {all} GPU operations are not in the trace"),
        );
    }
    if is_launch_blocking {
        let text =
            "every launch was waited for, as with CUDA_LAUNCH_BLOCKING=1: run without it first";
        doubt("LAUNCH_BLOCKING", text.to_owned());
    }
    let unknown = copies(trace).iter().any(|copies| {
        let to_or_from_host = matches!(copies.direction, Direction::Upload | Direction::Download);
        to_or_from_host && copies.memory == Memory::Unknown
    });
    if unknown {
        let text = "the trace does not say whether the host's memory is pinned";
        doubt("UNKNOWN_MEMORY", text.to_owned());
    }
    if let Some(text) = lost_of_graphs(trace, links) {
        doubt("GRAPHS", text);
    }
    if let Some(each) = sampled(trace) {
        let text = format!(
            "CUDA counted {each} calls for each one that is in the trace, which is only a sample: idle time may not be idle, and \
             nothing can be said about its causes; record it again without leaving events out"
        );
        doubt("SAMPLED", text);
    }
    doubts
}
