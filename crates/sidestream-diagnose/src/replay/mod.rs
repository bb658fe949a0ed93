//! What a change would be worth: the trace as a program, run again by the engine.
//!
//! # The plan
//! 1. **The program.** Calls and their work become tasks ([`program`]). Host threads that hand over to each other, as a
//!    thread of Python and that of its backward pass do, are one lane; threads that work at once are lanes of their
//!    own. Time between two calls is the host's own work. Each work stands behind the one before it in its stream,
//!    and behind its call.
//! 2. **What CUDA promises the rule book says** ([`edges`]): streams in order, waits for events, the legacy default
//!    stream.
//! 3. **What the trace does not hold is inferred.** A wait of a stream is joined with the record that the trace names; where it names none,
//!    with the one before it in the sequence of calls, and dropped if the times contradict it. A synchronisation waits for the work that
//!    ended last before it came back.
//! 4. **The device's own latencies** are those of the trace ([`calibrate`]): from a call to its work, from one work to the next. No gap
//!    is copied from the trace.
//! 5. **The unmodified program runs first.** How far its step is from the measured one is reported, and beyond 3 %
//!    nothing is predicted.
//! 6. **The profiler's own time is taken out** of the host's, before and after a change: an estimate.
//! 7. **A change changes the program** ([`change`]), never a result: what follows from it, the engine finds. So no prediction leads below
//!    the work of the device, the copies of each direction, or the host's own time.
//!
//! # What it does not know
//! Whether kernels depend on each other across what a second stream would separate; that other threads may wait for a
//! lock; how much slower the profiler made this very machine.

mod calibrate;
mod change;
mod edges;
mod program;
mod run;

pub use change::{Change, UnknownChange};
pub use program::share;

use crate::measure::{Links, Steps, WorkOfCalls, quantile};
use crate::model::{ApiKind, Trace};
use crate::timeline::Timeline;
use calibrate::Profiler;
use program::Program;
use run::Run;

/// A replay that is further off explains nothing.
const MOST_ERROR: f64 = 0.03;
/// Fewer steps have no median worth the name.
const LEAST_STEPS: usize = 3;
/// More streams than these no program of one process has.
const MOST_STREAMS: usize = 1_024;

/// How well the model explains the trace, and what changes would be worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The measured time of a step.
    pub measured_ns: u64,
    /// The time of a step in the replay of the unmodified trace. Where that is only its first steps, and they are
    /// slower or faster than all of them, it is put into that proportion.
    pub replayed_ns: u64,
    /// How many steps were replayed: the first ones.
    pub steps: usize,
    /// How much of the time of the steps that were replayed it explains: all but what single steps are off by.
    pub explained_share: f64,
    /// The time of the unmodified step without the profiler: the predictions are without it too.
    pub unprofiled_ns: u64,
    /// What was predicted; nothing where the replay is too far off.
    pub predictions: Vec<Prediction>,
}

impl Replay {
    /// How far the replay is from the trace, as a part of a step.
    pub fn error(&self) -> f64 {
        self.replayed_ns.abs_diff(self.measured_ns) as f64 / self.measured_ns.max(1) as f64
    }

    /// Whether it is near enough to predict anything.
    pub fn is_ok(&self) -> bool {
        self.error() <= MOST_ERROR
    }

    /// Whether the profiler made the step longer by more than 1 %. Predictions are without it.
    pub fn is_slowed_by_profiler(&self) -> bool {
        (self.unprofiled_ns as f64) < 0.99 * self.measured_ns as f64
    }
}

/// What a step would take with some changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The changes, made together.
    pub changes: Vec<Change>,
    /// The least.
    pub low_ns: u64,
    /// What is to be expected.
    pub likely_ns: u64,
    /// The most.
    pub high_ns: u64,
    /// What runs in the step nearest to the median.
    pub timeline: Timeline,
}

/// Replays a trace, and then with each of these sets of changes.
///
/// # Errors
/// Why the trace cannot be replayed, in one sentence.
pub fn replay(
    trace: &Trace,
    links: &Links,
    works: &WorkOfCalls,
    steps: &Steps,
    link_gb_per_s: f64,
    sets: &[Vec<Change>],
) -> Result<Replay, &'static str> {
    let measured_ns = supported(trace, links, works, steps)?;
    let program = Program::of(trace, links, works, steps)?;
    if program.steps < LEAST_STEPS {
        return Err("the calls of fewer than three steps are in the trace");
    }
    let profiles = calibrate::profiles(trace, links, link_gb_per_s);
    let run = |program: &Program| {
        let run = Run::of(program, &profiles);
        let median_ns = quantile(&run.periods_ns, 1, 2);
        let median_ns = median_ns.ok_or("the steps of the trace end out of their order")?;
        Ok((median_ns.max(program.loading_floor_ns()), run))
    };
    let (median_ns, unmodified) = run(&program)?;
    // The first steps of a trace may be slower than all of them: a replay of these is held against these.
    let mut first_ns = steps.periods_ns();
    first_ns.truncate(unmodified.periods_ns.len());
    let first_ns = quantile(&first_ns, 1, 2)
        .filter(|ns| *ns > 0)
        .ok_or("the first steps of the trace have no length")?;
    let replayed_ns = (median_ns as f64 * measured_ns as f64 / first_ns as f64) as u64;
    let profiler = Profiler::of(trace.source);
    let unprofiled_ns = {
        let mut unprofiled = program.clone();
        change::without_profiler(&mut unprofiled, profiler);
        run(&unprofiled)?.0
    };
    // What the replay is off by, the predictions would be too.
    let corrected = |ns: u64| (ns as f64 * measured_ns as f64 / median_ns.max(1) as f64) as u64;
    let mut replay = Replay {
        measured_ns,
        replayed_ns,
        steps: program.steps,
        explained_share: explained(&steps.periods_ns(), &unmodified.periods_ns),
        unprofiled_ns: corrected(unprofiled_ns).min(measured_ns),
        predictions: Vec::new(),
    };
    if !replay.is_ok() {
        return Ok(replay);
    }
    let error = replay.error();
    for changes in sets {
        let mut changed = program.clone();
        for change in changes {
            change.apply(&mut changed, &profiles[0]);
        }
        let with_profiler_ns = corrected(run(&changed)?.0);
        change::without_profiler(&mut changed, profiler);
        let (changed_ns, run) = run(&changed)?;
        let likely_ns = corrected(changed_ns);
        let of = |ns: u64, factor: f64| (ns as f64 * factor) as u64;
        // What the profiler adds differs by half and more from one machine to the next.
        let profiler_ns = with_profiler_ns.saturating_sub(likely_ns);
        replay.predictions.push(Prediction {
            changes: changes.clone(),
            low_ns: of(likely_ns.saturating_sub(profiler_ns / 2), 0.93 - error),
            likely_ns,
            high_ns: of(likely_ns.max(with_profiler_ns), 1.12 + error),
            timeline: run.timeline(&changed, trace),
        });
    }
    Ok(replay)
}

/// How much of the time of the steps a replay explains, step by step.
fn explained(measured_ns: &[u64], replayed_ns: &[u64]) -> f64 {
    let pairs = measured_ns.iter().zip(replayed_ns);
    let (mut off, mut all) = (0.0, 0.0);
    for (measured, replayed) in pairs {
        off += measured.abs_diff(*replayed) as f64;
        all += *measured as f64;
    }
    match all > 0.0 {
        true => (1.0 - off / all).max(0.0),
        false => 0.0,
    }
}

/// The measured time of a step, if the trace has what a replay needs.
fn supported(
    trace: &Trace,
    links: &Links,
    works: &WorkOfCalls,
    steps: &Steps,
) -> Result<u64, &'static str> {
    if trace.calls.is_empty() {
        return Err("the trace has no calls of the host");
    }
    if trace.warnings.iter().any(|w| w.code == "WHOLE_GRAPHS") {
        return Err("the kernels inside CUDA graphs are not in the trace");
    }
    if program::orphans(trace, links) * 20 > trace.work.len() {
        return Err("the calls of more than 5 % of the GPU operations are not in the trace");
    }
    if are_kernels_missing(trace, works, steps) {
        return Err("the kernels of more than 5 % of the launches are not in the trace");
    }
    if trace.streams.len() > MOST_STREAMS {
        return Err("the trace has more than 1,024 streams");
    }
    if steps.steps.len() < LEAST_STEPS {
        return Err("the trace has fewer than three steps");
    }
    steps
        .median_ns()
        .filter(|ns| *ns > 0)
        .ok_or("the steps of the trace have no length")
}

/// Whether the profiler lost kernels: launches in the middle of the steps left no work.
fn are_kernels_missing(trace: &Trace, works: &WorkOfCalls, steps: &Steps) -> bool {
    // The work of the last steps may have begun after the trace ended.
    let last = steps.steps.len().saturating_sub(2);
    let (mut launches, mut missing) = (0, 0);
    for (at, call) in trace.calls.iter().enumerate() {
        let inside = steps.at(call.start_ns).is_some_and(|step| step < last);
        if inside && call.api.kind == ApiKind::Launch {
            launches += 1;
            missing += usize::from(works.first(at).is_none());
        }
    }
    missing * 20 > launches
}
