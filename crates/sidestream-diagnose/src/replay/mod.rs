//! What a change would be worth: the trace as a program, run again by the engine.
//!
//! # The plan
//! 1. **The program.** Calls and their work become tasks ([`program`]). Host threads that hand over to each other, as a
//!    thread of Python and that of its backward pass do, are one lane; threads that work at once are lanes of their
//!    own. Time between two calls is the host's own work. Each work stands behind the one before it in its stream,
//!    and behind its call.
//! 2. **What the trace does not hold is inferred,** and kept apart from what follows from the calls. A wait of a stream is joined with the record before
//!    it by the sequence of calls, and dropped if the times contradict it. A synchronisation waits for the work that
//!    ended last before it came back.
//! 3. **The device's own latencies** are those of the trace ([`calibrate`]): from a call to its work, from one work to the next. No gap
//!    is copied from the trace.
//! 4. **The unmodified program runs first.** How far its step is from the measured one is reported, and beyond 3 %
//!    nothing is predicted.
//! 5. **A change changes the program** ([`change`]), never a result: what follows from it, the engine finds. So no prediction leads below
//!    the work of the device, the copies of each direction, or the host's own time.
//!
//! # What it does not know
//! Whether kernels depend on each other across what a second stream would separate; that other threads may wait for a
//! lock; that the profiler makes each call slower than it is without.

mod calibrate;
mod change;
mod program;
mod run;

pub use change::{Change, UnknownChange};
pub use program::share;

use std::collections::BTreeSet;

use crate::measure::{Links, Steps, quantile};
use crate::model::Trace;
use crate::timeline::Timeline;
use program::Program;
use run::Run;

/// A replay that is further off explains nothing.
const MOST_ERROR: f64 = 0.03;
/// Fewer steps have no median worth the name.
const LEAST_STEPS: usize = 3;

/// How well the model explains the trace, and what changes would be worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The measured time of a step.
    pub measured_ns: u64,
    /// The time of a step in the replay of the unmodified trace.
    pub replayed_ns: u64,
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
    steps: &Steps,
    link_gb_per_s: f64,
    sets: &[Vec<Change>],
) -> Result<Replay, &'static str> {
    let measured_ns = supported(trace, links, steps)?;
    let program = Program::of(trace, links, steps);
    let profile = calibrate::profile(trace, links, link_gb_per_s);
    let run = |program: &Program| {
        let run = Run::of(program, &profile);
        let median_ns = quantile(&run.periods_ns, 1, 2);
        let median_ns = median_ns.ok_or("the steps of the trace end out of their order")?;
        Ok((median_ns, run))
    };
    let (replayed_ns, _) = run(&program)?;
    let mut replay = Replay {
        measured_ns,
        replayed_ns,
        predictions: Vec::new(),
    };
    if !replay.is_ok() {
        return Ok(replay);
    }
    let error = replay.error();
    for changes in sets {
        let mut changed = program.clone();
        for change in changes {
            change.apply(&mut changed, &profile);
        }
        // What the replay is off by, the prediction would be too.
        let (changed_ns, run) = run(&changed)?;
        let corrected = changed_ns as f64 * measured_ns as f64 / replayed_ns.max(1) as f64;
        let likely_ns = corrected as u64;
        let of = |factor: f64| (likely_ns as f64 * factor) as u64;
        replay.predictions.push(Prediction {
            changes: changes.clone(),
            low_ns: of(0.95 - error),
            likely_ns,
            high_ns: of(1.08 + error),
            timeline: run.timeline(&changed, trace),
        });
    }
    Ok(replay)
}

/// The measured time of a step, if the trace has what a replay needs.
fn supported(trace: &Trace, links: &Links, steps: &Steps) -> Result<u64, &'static str> {
    if trace.calls.is_empty() {
        return Err("the trace has no calls of the host");
    }
    if links.orphans() * 20 > trace.work.len() {
        return Err("the calls of more than 5 % of the GPU operations are not in the trace");
    }
    if steps.steps.len() < LEAST_STEPS {
        return Err("the trace has fewer than three steps");
    }
    let devices: BTreeSet<i64> = trace
        .work
        .iter()
        .map(|w| trace.streams[w.stream.0 as usize].device)
        .collect();
    if devices.len() > 1 {
        return Err("the trace is of several devices");
    }
    steps
        .median_ns()
        .filter(|ns| *ns > 0)
        .ok_or("the steps of the trace have no length")
}
