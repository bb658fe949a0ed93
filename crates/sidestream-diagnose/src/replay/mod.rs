//! Predicts what a change would gain: the trace becomes a program that the engine runs again.
//!
//! # The plan
//! 1. **The program.** Calls and their work become tasks ([`program`]). Host threads that hand over to each other, such as a
//!    Python thread and that of its backward pass, are one lane; threads that work concurrently are separate lanes. Time
//!    between two calls is the host's own work. Each operation is ordered after the previous one in its stream, and after its
//!    call.
//! 2. **The rule book states what CUDA guarantees** ([`edges`]): streams in order, waits for events, the legacy default stream.
//! 3. **What the trace lacks is inferred.** A wait of a stream is joined with the record that the trace names; where it names
//!    none, with the one before it in the order of calls, and dropped if the times contradict it. A synchronisation waits for
//!    the work that ended last before it returned.
//! 4. **The device's own latencies** are those of the trace ([`calibrate`]): from a call to its work, from one operation to the
//!    next. No gap is copied from the trace.
//! 5. **The unmodified program runs first.** The difference of its step from the measured one is reported; if it exceeds 3 %,
//!    nothing is predicted.
//! 6. **The profiler's own time is removed** from the host's, before and after a change, and so is one-time work. How much the
//!    profiler adds is an estimate: each prediction is made for the least, the usual and the most of it. Where a step was timed
//!    before the profiler started, these three are the values that explain its time ([`fit`]).
//! 7. **A change modifies the program** ([`apply`]), never a result: the engine determines the consequences. The gain is a
//!    ratio of sums over the replayed steps. No prediction is below the time in which kernels ran.
//!
//! # Limits
//! The replay does not know whether kernels depend on each other across the split of a second stream, whether other threads
//! wait for a lock, or how much the profiler slowed down this particular machine.

mod apply;
mod calibrate;
mod change;
mod edges;
mod fit;
mod host;
mod like;
mod program;
mod run;
mod sets;
mod taking;

pub use change::{Change, UnknownChange};
pub use program::share;

use std::collections::HashSet;

use crate::idle::{Idle, Scene};
use crate::measure::{DeviceTime, Links, Spans, Steps, WorkOfCalls, add, copy_engines, sampled};
use crate::model::{ApiKind, Base, Trace};
use crate::timeline::Timeline;
use calibrate::{Profiler, Share};
use fit::Fit;
use program::{Item, Job, Program};
use run::Run;
use sidestream::engine::Profile;

/// A replay with a larger error explains nothing.
const MOST_ERROR: f64 = 0.03;
/// With fewer steps a mean has no meaning.
const LEAST_STEPS: usize = 3;
/// The maximum number of streams of one process that are replayed.
const MOST_STREAMS: usize = 1_024;
/// The error of a predicted time that neither the replay nor the profiler causes: the time of kernels varies from run to run.
const MODEL: (f64, f64) = (0.95, 1.06);
/// The error of a predicted gain, relative to the time that remains, since both steps come from one trace.
const GAIN_OFF: f64 = 0.03;
/// The variation of the host's own work between runs: the error of a predicted gain from removing it, relative to
/// that gain.
const HOST_OFF: f64 = 0.05;
/// Factors for the speed of the link that are tried where no copy of the trace shows it: the link may be half as wide as links
/// of its generation, or of a later generation.
const LINK: [f64; 2] = [0.5, 1.6];
/// Factors for the cost of taking over a batch from a worker, which was measured with two programs and may differ for others.
const TAKE_OVER: [f64; 2] = [0.6, 1.5];
/// Factors for the time that workers take for host work. It was measured with one program; it may differ in others, or if more
/// workers share the CPU cores.
const BY_WORKERS: [f64; 2] = [0.87, 1.25];
/// Factors for the host's time that remains with a few launches instead of many, which is an assumption.
const FUSED: [f64; 2] = [0.25, 2.0];
/// An assumption about the host's time: which changes depend on it, the factors, and the time that they apply to.
type Guess = (fn(&Change) -> bool, [f64; 2], fn(&mut Item, f64));
const GUESSES: [Guess; 3] = [
    (Change::is_of_workers, TAKE_OVER, |item, factor| {
        item.take_over_ns = (item.take_over_ns as f64 * factor) as u64
    }),
    (
        |change| matches!(change, Change::HostWork(_) | Change::MoreWorkers(_)),
        BY_WORKERS,
        |item, factor| item.worker_ns = (item.worker_ns as f64 * factor) as u64,
    ),
    (
        |change| matches!(change, Change::Fused(_)),
        FUSED,
        |item, factor| {
            let left_ns = (item.fused_ns as f64 * factor) as u64;
            item.own_ns = (item.own_ns - item.fused_ns.min(item.own_ns)).saturating_add(left_ns);
        },
    ),
];
/// Concurrent downloads and kernels slow each other down: such predictions were too low by up to a ninth, where the downloads
/// are this part of a step or more.
const BESIDE: f64 = 1.13;
const BESIDE_FROM: f64 = 0.05;

/// How well the model explains the trace, and what changes would gain.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Measured mean time of all steps.
    pub measured_ns: u64,
    /// Time of a step in the replay of the unmodified trace. If only some steps were replayed, it is scaled to the mean of all.
    pub replayed_ns: u64,
    /// Number of replayed steps: all of them, or the consecutive ones that are most representative.
    pub steps: usize,
    /// The part of the replayed steps' time that the replay explains: one minus the errors of the single steps.
    pub explained_share: f64,
    /// Time of the unmodified step without the profiler and without one-time work, which the predictions leave out too.
    pub unprofiled_ns: u64,
    /// A lower and an upper bound of this time: the cost of the profiler is an estimate, and measurements have a spread.
    pub unprofiled_between_ns: (u64, u64),
    /// The source of these two times. A measurement that the trace states is not used if the recorded steps contradict it.
    pub base: Base,
    /// The predictions: each usual change alone, then sets; empty if the replay's error is too large.
    pub predictions: Vec<Prediction>,
    /// Number of predictions at the end that the caller asked for.
    pub asked: usize,
}

impl Replay {
    /// Returns the error of the replay, as a part of a step.
    pub fn error(&self) -> f64 {
        self.replayed_ns.abs_diff(self.measured_ns) as f64 / self.measured_ns.max(1) as f64
    }

    /// Returns whether the error is small enough for predictions.
    pub fn is_ok(&self) -> bool {
        self.error() <= MOST_ERROR
    }

    /// Returns whether a step without the profiler is shorter by more than 1 %. Predictions are without it.
    pub fn is_slowed_by_profiler(&self) -> bool {
        (self.unprofiled_ns as f64) < 0.99 * self.measured_ns as f64
    }

    /// Returns the prediction for a set of changes.
    pub fn prediction(&self, changes: &[Change]) -> Option<&Prediction> {
        self.predictions.iter().find(|p| p.changes == changes)
    }
}

/// Time of a step with some changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The changes, made together.
    pub changes: Vec<Change>,
    /// The least time.
    pub low_ns: u64,
    /// The expected time.
    pub likely_ns: u64,
    /// The most time.
    pub high_ns: u64,
    /// Whether each of the changes found something to change in the trace.
    pub is_effective: bool,
    /// Time of a step if the profiler added the most, the usual, and the least.
    pub(crate) by_profiler_ns: [u64; 3],
    /// The least and the most time given the other unknowns: the speed of the link, the cost of a batch from a worker, the time
    /// of the host's work.
    pub(crate) unknown_ns: (u64, u64),
    /// By which part of a step the changed one may be slower than predicted, where copies in both directions run at once.
    pub(crate) slower: f64,
    /// The activity in the step nearest to the median.
    pub timeline: Timeline,
}

impl Prediction {
    /// Returns by how much a step is shorter than with other changes: the least, the expected and the most.
    pub(crate) fn gain_over(&self, other: [u64; 3]) -> (u64, u64, u64) {
        let by_profiler = [0, 1, 2].map(|at| other[at].saturating_sub(self.by_profiler_ns[at]));
        let likely = by_profiler[1];
        let unknown = [self.unknown_ns.0, self.unknown_ns.1].map(|ns| other[1].saturating_sub(ns));
        let gains = by_profiler.into_iter().chain(unknown);
        let least = gains.clone().min().unwrap_or(0);
        let most = gains.max().unwrap_or(0);
        // The error of a predicted gain is relative to the time that remains, not to the gain. Changes of the host's work add
        // an error relative to the gain.
        let mut off_ns = self.likely_ns as f64 * GAIN_OFF;
        if self.changes.iter().any(Change::is_of_the_host) {
            off_ns += likely as f64 * HOST_OFF;
        }
        let slower_ns = off_ns.max(self.likely_ns as f64 * self.slower);
        let low = least.saturating_sub(slower_ns as u64);
        let high = most.saturating_add(off_ns as u64);
        (low.min(likely), likely, high.max(likely))
    }
}

/// The data from which a replay is made.
pub struct Source<'t> {
    pub trace: &'t Trace,
    pub links: &'t Links,
    pub works: &'t WorkOfCalls,
    pub steps: &'t Steps,
    pub scene: &'t Scene<'t>,
    pub devices: &'t [DeviceTime],
    /// The idle time of each device by cause.
    pub idles: &'t [Idle],
    pub link_gb_per_s: f64,
    /// Whether the speed of the link is an assumption.
    pub is_link_assumed: bool,
    /// Whether batches already come from workers, whose loading time is not in the trace.
    pub has_workers: bool,
}

/// Replays a trace, then with each of the usual changes, with sets of those that gain together, and with the sets that the
/// caller asks for.
///
/// # Errors
/// Why the trace cannot be replayed, in one sentence.
pub fn replay(source: &Source, asked: &[Vec<Change>]) -> Result<Replay, &'static str> {
    let (trace, steps) = (source.trace, source.steps);
    let measured_ns = supported(trace, source.links, source.works, steps)?;
    let first = like::first(source)?;
    let mut program = Program::of(
        trace,
        source.links,
        source.works,
        steps,
        source.scene,
        first,
    )?;
    if program.steps < LEAST_STEPS {
        return Err("the calls of fewer than three steps are in the trace");
    }
    let profiles = calibrate::profiles(trace, source.links, &program, source.link_gb_per_s);
    let unmodified = Run::of(&program, &profiles);
    let replayed_sum = sum(&unmodified.periods_ns);
    // Some steps of a trace may be slower than the mean of all: their replay is compared with these same steps.
    let measured: Vec<u64> = steps.periods_ns().split_off(first);
    let taken = unmodified.periods_ns.len().min(measured.len());
    let first_sum = sum(&measured[..taken]);
    if replayed_sum == 0 {
        return Err("the steps of the trace end out of their order");
    }
    if first_sum == 0 {
        return Err("the steps of the trace that are replayed have no length");
    }
    let replayed_ns = (replayed_sum as f64 * measured_ns as f64 / first_sum as f64) as u64;
    let mut replay = Replay {
        measured_ns,
        replayed_ns,
        steps: program.steps,
        explained_share: explained(&measured, &unmodified.periods_ns),
        unprofiled_ns: measured_ns,
        unprofiled_between_ns: (measured_ns, measured_ns),
        base: Base::Estimated,
        predictions: Vec::new(),
        asked: 0,
    };
    let delivered = source
        .has_workers
        .then(|| delivered(&program, &unmodified))
        .flatten();
    program.pace_ns = delivered.map_or(0, |delivered| pace_ns(&program, delivered));
    // The predictions are scaled by the error of the replay.
    let scale = measured_ns as f64 / replayed_sum as f64;
    let per_step = measured_ns as f64 / first_sum as f64;
    let mut model = Model {
        trace,
        program: &program,
        profiles: &profiles,
        profiler: Profiler::of(trace, &program),
        fit: Fit::default(),
        is_link_assumed: source.is_link_assumed,
        has_unknown_engines: trace
            .streams
            .iter()
            .any(|stream| copy_engines(trace, stream.device).is_none()),
        scale,
        scale_of_nodes: per_step,
        error: replay.error(),
        measured_ns,
        floors_ns: floors(source, &program, taken, per_step),
        delivered,
    };
    if let Base::Measured(measured) = trace.base
        && let Some(fit) = Fit::to(&measured, |share| model.unmodified_ns(share))
    {
        model.fit = fit;
        replay.base = trace.base;
    }
    let base = model
        .predict(&[], None)
        .ok_or("the steps of the trace end out of their order")?;
    let longest_ns = match replay.base {
        Base::Estimated => measured_ns,
        // The timed steps may have been longer than the recorded ones.
        Base::Measured(_) => u64::MAX,
    };
    let [least, usual, most] = base.by_profiler_ns.map(|ns| ns.min(longest_ns));
    replay.unprofiled_ns = usual;
    replay.unprofiled_between_ns = (least.min(usual), most.max(usual));
    if !replay.is_ok() {
        return Ok(replay);
    }
    let singles = sets::singles(source, &program);
    replay.predictions = model.predict_all(&singles, &base);
    sets::together(&model, &base, &mut replay.predictions);
    replay.predictions.extend(model.predict_all(asked, &base));
    replay.asked = asked.len();
    Ok(replay)
}

fn sum(periods_ns: &[u64]) -> u64 {
    periods_ns.iter().copied().fold(0, u64::saturating_add)
}

/// Returns, where batches come from workers and the program had to wait for some, the number of steps up to the last such wait,
/// and their time. Up to there the workers determine the speed of the program, regardless of other changes: none of their
/// batches was left over.
fn delivered(program: &Program, unmodified: &Run) -> Option<(usize, u64)> {
    let all_ns = sum(&unmodified.periods_ns);
    let mean_ns = all_ns / unmodified.periods_ns.len().max(1) as u64;
    let least_ns = LEAST_WAIT_NS.max(mean_ns / 20);
    let waits = program
        .items
        .iter()
        .filter(|item| item.loading_ns >= least_ns);
    let last = waits.map(|item| item.step as usize).max()?;
    let periods = unmodified.periods_up_to(last);
    (periods > 0).then(|| (periods, sum(&unmodified.periods_ns[..periods])))
}

/// Returns the time of all workers together for a batch, in the steps in which they determined the speed.
fn pace_ns(program: &Program, (periods, delivered_ns): (usize, u64)) -> u64 {
    let loaded = program.items.iter().filter(|item| item.loading_ns > 0);
    let batches: HashSet<u32> = loaded.map(|item| item.batch).collect();
    let per_step = batches.len() as f64 / program.steps.max(1) as f64;
    (delivered_ns as f64 / periods as f64 / per_step) as u64
}

/// A shorter wait for data is only the handing over of a batch.
const LEAST_WAIT_NS: u64 = 1_000_000;

/// The data with which predictions are made.
struct Model<'t> {
    trace: &'t Trace,
    program: &'t Program,
    profiles: &'t [Profile],
    profiler: Profiler,
    /// How much of the profiler's cost is removed.
    fit: Fit,
    is_link_assumed: bool,
    /// Whether some device may copy in only one direction at a time.
    has_unknown_engines: bool,
    /// The factor from a sum over the replayed steps to the mean of all steps.
    scale: f64,
    /// The factor for the times of nodes.
    scale_of_nodes: f64,
    error: f64,
    /// Time of a step in the trace.
    measured_ns: u64,
    /// Two lower bounds of a step: the time of its kernels as they ran, and the time that they would take concurrently.
    floors_ns: (u64, u64),
    /// The number of steps in which workers determined the speed, and the least time of these.
    delivered: Option<(usize, u64)>,
}

impl Model<'_> {
    /// Predicts a step with these changes; returns `base` if they change nothing.
    fn predict(&self, changes: &[Change], base: Option<&Prediction>) -> Option<Prediction> {
        let (changed, effective) = self.changed(changes, 1.0);
        if let (0, Some(base)) = (effective, base) {
            return Some(Prediction {
                changes: changes.to_vec(),
                is_effective: false,
                ..base.clone()
            });
        }
        let run = |changed: &Program, at: usize| {
            let mut program = changed.clone();
            apply::without_profiler(&mut program, self.profiler, self.fit.shares[at]);
            let (step_ns, run) = self.step_ns(&program, changes, self.profiles)?;
            Some((self.fit.scaled(at, step_ns), run, program))
        };
        // A run takes as much memory as the trace, so only one exists at a time.
        let (mut likely_ns, downloads_ns, timeline) = {
            let (likely_ns, run, program) = run(&changed, Fit::USUAL)?;
            let downloads_ns = downloads_ns(&program) as f64 * self.scale_of_nodes;
            (likely_ns, downloads_ns, run.timeline(&program, self.trace))
        };
        let mut unknown = vec![likely_ns];
        if changes.contains(&Change::Graphs) {
            let apart_ns = self.graphs_apart_ns(&changed, changes)?;
            unknown.push(apart_ns);
            let base_ns = base.map_or(likely_ns, |base| base.likely_ns);
            let gain = |ns: u64| base_ns.saturating_sub(ns);
            if 2 * gain(apart_ns) < gain(likely_ns) {
                likely_ns = apart_ns.max(likely_ns);
            }
        }
        let step_ns = |changed: &Program, at| run(changed, at).map(|(step_ns, ..)| step_ns);
        // If no profiler cost is removed, there is no uncertainty about that cost.
        let by_profiler_ns = if self.profiler == Profiler::default() {
            [likely_ns; 3]
        } else {
            [
                step_ns(&changed, Fit::MOST)?,
                likely_ns,
                step_ns(&changed, Fit::LEAST)?,
            ]
        };
        if self.is_link_assumed && changes.iter().any(Change::is_of_the_link) {
            for factor in LINK {
                unknown.extend(step_ns(&self.changed(changes, factor).0, Fit::USUAL));
            }
        }
        if self.has_unknown_engines && changes.iter().any(Change::is_of_copies) {
            let mut profiles = self.profiles.to_vec();
            profiles
                .iter_mut()
                .for_each(|profile| profile.copy_engines = 1.0);
            unknown.extend(self.usual_ns(&changed, changes, &profiles));
        }
        for (rests_on_it, factors, vary) in GUESSES {
            let factors = factors.into_iter();
            for factor in factors.filter(|_| changes.iter().any(rests_on_it)) {
                let mut other = changed.clone();
                other.items.iter_mut().for_each(|item| vary(item, factor));
                unknown.extend(step_ns(&other, Fit::USUAL));
            }
        }
        let unknown_ns = (
            unknown.iter().copied().min().unwrap_or(likely_ns),
            unknown.iter().copied().max().unwrap_or(likely_ns),
        );
        let least_ns = by_profiler_ns.into_iter().fold(unknown_ns.0, u64::min);
        // What a profiler adds between kernels of a graph is in every step, with and without the changes: it is not a gain.
        let least_ns = if self.profiler != Profiler::default() && has_graphs(&changed) {
            least_ns.min(self.graphs_close_ns(&changed, changes)?)
        } else {
            least_ns
        };
        let most_ns = by_profiler_ns.into_iter().fold(unknown_ns.1, u64::max);
        let of = |ns: u64, factor: f64| (ns as f64 * factor) as u64;
        let moves = |change: &Change| matches!(change, Change::Prefetch(_) | Change::AsyncOutput);
        let are_beside =
            changes.iter().any(moves) && downloads_ns >= BESIDE_FROM * likely_ns as f64;
        let factor = if are_beside { BESIDE } else { MODEL.1 };
        Some(Prediction {
            changes: changes.to_vec(),
            low_ns: of(least_ns, MODEL.0 - self.error).min(likely_ns),
            likely_ns,
            high_ns: of(most_ns, factor + self.error),
            is_effective: effective == changes.len(),
            by_profiler_ns,
            unknown_ns,
            slower: if are_beside { BESIDE - 1.0 } else { 0.0 },
            timeline,
        })
    }

    /// Returns the time of the step if graph kernels follow each other as closely as they do without the profiler.
    fn graphs_close_ns(&self, changed: &Program, changes: &[Change]) -> Option<u64> {
        let mut profiles = self.profiles.to_vec();
        for profile in &mut profiles {
            let added_ns = (profile.graph_gap_ns - calibrate::GRAPH_GAP_NS).max(0.0);
            profile.graph_gap_ns -= added_ns;
            profile.engine_hop_ns = (profile.engine_hop_ns - added_ns).max(0.0);
        }
        self.usual_ns(changed, changes, &profiles)
    }

    /// Returns the time of the step with graphs if graph kernels have the same gaps between them as other kernels. Only a trace
    /// with graphs shows how small their gaps are: a gain that consists mostly of smaller gaps is not predicted.
    fn graphs_apart_ns(&self, changed: &Program, changes: &[Change]) -> Option<u64> {
        let mut profiles = self.profiles.to_vec();
        for profile in &mut profiles {
            profile.graph_gap_ns = profile.graph_gap_ns.max(profile.kernel_gap_ns);
        }
        self.usual_ns(changed, changes, &profiles)
    }

    /// Returns the time of a step of a changed program on such devices, without the usual cost of the profiler.
    fn usual_ns(&self, changed: &Program, changes: &[Change], profiles: &[Profile]) -> Option<u64> {
        let mut program = changed.clone();
        apply::without_profiler(&mut program, self.profiler, self.fit.shares[Fit::USUAL]);
        let (step_ns, _) = self.step_ns(&program, changes, profiles)?;
        Some(self.fit.scaled(Fit::USUAL, step_ns))
    }

    /// Returns the program with these changes, and how many of them found something to change, if the link is `link` times as
    /// fast as assumed.
    fn changed(&self, changes: &[Change], link: f64) -> (Program, usize) {
        let mut profile = self.profiles[0].clone();
        profile.link_gb_s *= link;
        let mut changed = self.program.clone();
        let effective = changes
            .iter()
            .filter(|change| change.apply(&mut changed, &profile, self.trace))
            .count();
        (changed, effective)
    }

    /// Predicts each of several sets.
    fn predict_all(&self, sets: &[Vec<Change>], base: &Prediction) -> Vec<Prediction> {
        let all = sets.iter().map(|set| self.predict(set, Some(base)));
        all.flatten().collect()
    }

    /// Returns only the expected time of each set, for sets in which every change has an effect.
    fn screen(&self, sets: Vec<Vec<Change>>) -> Vec<(Vec<Change>, u64)> {
        let likely = |changes: &Vec<Change>| {
            let mut changed = self.program.clone();
            for change in changes {
                if !change.apply(&mut changed, &self.profiles[0], self.trace) {
                    return None;
                }
            }
            let usual = self.fit.shares[Fit::USUAL];
            apply::without_profiler(&mut changed, self.profiler, usual);
            let (step_ns, _) = self.step_ns(&changed, changes, self.profiles)?;
            Some(self.fit.scaled(Fit::USUAL, step_ns))
        };
        let both = sets.into_iter().map(|set| (likely(&set), set));
        both.filter_map(|(ns, set)| Some((set, ns?))).collect()
    }

    /// Returns the time of the unmodified step for this share of the profiler.
    fn unmodified_ns(&self, share: Share) -> Option<u64> {
        let mut program = self.program.clone();
        apply::without_profiler(&mut program, self.profiler, share);
        let step = self.step_ns(&program, &[], self.profiles);
        step.map(|(ns, _)| ns)
    }

    /// Returns the time of a step of a program, and its run.
    fn step_ns(
        &self,
        program: &Program,
        changes: &[Change],
        profiles: &[Profile],
    ) -> Option<(u64, Run)> {
        let run = Run::of(program, profiles);
        let loading_ns = program.loading_floor_ns();
        let loading_ns = loading_ns.saturating_mul(run.periods_ns.len() as u64);
        let mut all_ns = sum(&run.periods_ns).max(loading_ns);
        let more_workers = changes.iter().any(Change::is_of_workers);
        if let Some((periods, delivered_ns)) = self.delivered.filter(|_| !more_workers) {
            let rest_ns = run.periods_ns.get(periods..).map_or(0, sum);
            all_ns = all_ns.max(delivered_ns.saturating_add(rest_ns));
        }
        let step_ns = (all_ns as f64 * self.scale) as u64;
        let copies_ns = (copies_ns(program, profiles) as f64 * self.scale_of_nodes) as u64;
        let floor_ns = if changes.is_empty() {
            0
        } else {
            copies_ns.min(self.measured_ns)
        };
        let floor_ns = floor_ns.max(self.floor_ns(changes));
        (all_ns > 0).then_some((step_ns.max(floor_ns), run))
    }

    /// Returns the least time of a step with these changes.
    fn floor_ns(&self, changes: &[Change]) -> u64 {
        if changes.iter().any(Change::is_concurrent) {
            self.floors_ns.1
        } else {
            self.floors_ns.0
        }
    }
}

fn has_graphs(program: &Program) -> bool {
    program.nodes.iter().any(|node| node.in_graph)
}

/// Returns the time of the copies of all steps except the first, on the busiest engine: at the end of the replayed steps no
/// more copies are made ahead, so they have fewer copies than usual.
fn copies_ns(program: &Program, profiles: &[Profile]) -> u64 {
    let mut busy_ns = vec![[0u64; 2]; profiles.len()];
    for node in program.nodes.iter().filter(|node| node.step > 0) {
        let device = program.device_of[node.stream] as usize;
        let profile = &profiles[device];
        let engine = match node.job {
            Job::Upload(copy) if copy.bytes as f64 > profile.inline_bytes => 0,
            Job::Download(_) if profile.copy_engines >= 2.0 => 1,
            Job::Download(_) => 0,
            _ => continue,
        };
        add(&mut busy_ns[device][engine], node.duration_ns);
    }
    busy_ns.into_iter().flatten().max().unwrap_or(0)
}

/// Returns the time of the downloads of all steps except the first.
fn downloads_ns(program: &Program) -> u64 {
    let nodes = program.nodes.iter().filter(|node| node.step > 0);
    let downloads = nodes.filter(|node| matches!(node.job, Job::Download(_)));
    downloads
        .map(|node| node.duration_ns)
        .fold(0, u64::saturating_add)
}

/// Returns the mean lower bounds of a step: the time in which any kernel of it ran, and the time in which all of them would
/// fill the device.
fn floors(source: &Source, program: &Program, taken: usize, per_step: f64) -> (u64, u64) {
    let ends = source
        .steps
        .steps
        .iter()
        .skip(program.first_step)
        .take(taken + 1)
        .map(|step| step.last_gpu_ns);
    let (Some(from), Some(to)) = (ends.clone().min(), ends.max()) else {
        return (0, 0);
    };
    let within = |spans: &Spans| spans.within_ns(from, to);
    let kernels = source.devices.iter().map(|device| within(&device.kernels));
    let mut filled = vec![0.0; program.devices.max(1)];
    for node in program
        .nodes
        .iter()
        .skip(program.backlog)
        .filter(|node| node.step > 0)
    {
        if let Job::Kernel { share } = node.job {
            filled[program.device_of[node.stream] as usize] += node.duration_ns as f64 * share;
        }
    }
    let most_filled = filled.into_iter().fold(0.0, f64::max);
    let most_kernels = kernels.max().unwrap_or(0) as f64;
    (
        (most_kernels * per_step) as u64,
        (most_filled.min(most_kernels) * per_step) as u64,
    )
}

/// Returns the part of the steps' time that a replay explains, step by step.
fn explained(measured_ns: &[u64], replayed_ns: &[u64]) -> f64 {
    let pairs = measured_ns.iter().zip(replayed_ns);
    let (mut off, mut all) = (0.0, 0.0);
    for (measured, replayed) in pairs {
        off += measured.abs_diff(*replayed) as f64;
        all += *measured as f64;
    }
    if all > 0.0 {
        (1.0 - off / all).max(0.0)
    } else {
        0.0
    }
}

/// Returns the measured time of a step, if the trace has what a replay needs.
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
    if sampled(trace).is_some() {
        return Err("the trace is only a sample of what ran");
    }
    if taking::orphans(trace, links) * 20 > trace.work.len() {
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
        .mean_ns()
        .filter(|ns| *ns > 0)
        .ok_or("the steps of the trace have no length")
}

/// Returns whether the profiler lost kernels: launches in the middle of the steps left no work.
fn are_kernels_missing(trace: &Trace, works: &WorkOfCalls, steps: &Steps) -> bool {
    // The work of the last steps may have begun after the trace ended.
    let last = steps.steps.len().saturating_sub(2);
    let (mut launches, mut missing) = (0, 0);
    for (at, call) in trace.calls.iter().enumerate() {
        let inside = steps.at(call.start_ns).is_some_and(|step| step < last);
        if inside && matches!(call.api.kind, ApiKind::Launch | ApiKind::GraphLaunch) {
            launches += 1;
            missing += usize::from(works.first(at).is_none());
        }
    }
    missing * 20 > launches
}
