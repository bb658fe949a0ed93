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
//! 6. **The profiler's own time is taken out** of the host's, before and after a change, and so is what is done once. How much
//!    the profiler adds is an estimate: each prediction is made for the least, the usual and the most of it. Where a step was timed before
//!    the profiler started, these three are what explains it ([`fit`]).
//! 7. **A change changes the program** ([`apply`]), never a result: what follows from it, the engine finds. What it gains is a ratio
//!    of sums over the replayed steps. No prediction leads below the time in which kernels ran.
//!
//! # What it does not know
//! Whether kernels depend on each other across what a second stream would separate; that other threads may wait for a
//! lock; how much slower the profiler made this very machine.

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
use crate::measure::{DeviceTime, Links, Spans, Steps, WorkOfCalls, copy_engines, sampled};
use crate::model::{ApiKind, Base, Direction, Trace};
use crate::timeline::Timeline;
use calibrate::{Profiler, Share};
use fit::Fit;
use program::{Item, Job, Program};
use run::Run;
use sidestream::engine::Profile;

/// A replay that is further off explains nothing.
const MOST_ERROR: f64 = 0.03;
/// Fewer steps have no mean worth the name.
const LEAST_STEPS: usize = 3;
/// More streams than these no program of one process has.
const MOST_STREAMS: usize = 1_024;
/// By so much a prediction may be off where neither the replay nor the profiler is: kernels take longer or shorter from one
/// run to the next.
const MODEL: (f64, f64) = (0.95, 1.06);
/// A gain is off by this part of what is left, since both steps are of one trace.
const GAIN_OFF: f64 = 0.03;
/// What the host does by itself takes so much more or less in another run: that part of what is gained without it.
const HOST_OFF: f64 = 0.05;
/// Where no copy of the trace shows how fast the link is, it may have so many times the speed that links of its
/// generation reach: it may be half as wide, or of a later one.
const LINK: [f64; 2] = [0.5, 1.6];
/// What it costs to take a batch over from a worker was measured with two programs; of another one it may be so many times
/// that.
const TAKE_OVER: [f64; 2] = [0.6, 1.5];
/// What workers take for work of the host was measured with one program; of another one, and where more of them share the
/// processors, it may be so many times that.
const BY_WORKERS: [f64; 2] = [0.87, 1.25];
/// What a few launches in the place of many leave of the host's time is an assumption; it may be so many times that.
const FUSED: [f64; 2] = [0.25, 2.0];
/// A guess at what the host takes: which changes rest on it, the factors, and what they are of.
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
/// Downloads that run beside kernels slow them down, and these the downloads: predictions of that were too low by up to a
/// ninth, where the downloads are this part of a step or more.
const BESIDE: f64 = 1.13;
const BESIDE_FROM: f64 = 0.05;

/// How well the model explains the trace, and what changes would be worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The measured time of a step, in the mean of all.
    pub measured_ns: u64,
    /// The time of a step in the replay of the unmodified trace. Where that is only some of its steps, and they are
    /// slower or faster than all of them, it is put into that proportion.
    pub replayed_ns: u64,
    /// How many steps were replayed: all of them, or those neighbours that are most like all.
    pub steps: usize,
    /// How much of the time of the steps that were replayed it explains: all but what single steps are off by.
    pub explained_share: f64,
    /// The time of the unmodified step without the profiler and without what is done once: the predictions are without
    /// these too.
    pub unprofiled_ns: u64,
    /// The least and the most that this may be: how much the profiler adds is an estimate, and what was measured has a spread.
    pub unprofiled_between_ns: (u64, u64),
    /// What the two are from. Not what the trace states, where its recorded steps do not bear that out.
    pub base: Base,
    /// What was predicted: each usual change alone, then sets; nothing where the replay is too far off.
    pub predictions: Vec<Prediction>,
    /// How many of the last predictions the caller asked for.
    pub asked: usize,
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

    /// Whether a step without the profiler is shorter by more than 1 %. Predictions are without it.
    pub fn is_slowed_by_profiler(&self) -> bool {
        (self.unprofiled_ns as f64) < 0.99 * self.measured_ns as f64
    }

    /// What was predicted for a set of changes.
    pub fn prediction(&self, changes: &[Change]) -> Option<&Prediction> {
        self.predictions.iter().find(|p| p.changes == changes)
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
    /// Whether there was anything in the trace for each of the changes to change.
    pub is_effective: bool,
    /// What a step would take if the profiler added the most, the usual, and the least.
    pub(crate) by_profiler_ns: [u64; 3],
    /// The least and the most that it would take for what else is not known: how fast the link is, what a batch costs that
    /// a worker made, how long work of the host takes.
    pub(crate) unknown_ns: (u64, u64),
    /// What runs in the step nearest to the median.
    pub timeline: Timeline,
}

impl Prediction {
    /// What a step is shorter than with other changes, at the least, as is to be expected, and at the most.
    pub(crate) fn gain_over(&self, other: [u64; 3]) -> (u64, u64, u64) {
        let by_profiler = [0, 1, 2].map(|at| other[at].saturating_sub(self.by_profiler_ns[at]));
        let likely = by_profiler[1];
        let unknown = [self.unknown_ns.0, self.unknown_ns.1].map(|ns| other[1].saturating_sub(ns));
        let gains = by_profiler.into_iter().chain(unknown);
        let least = gains.clone().min().unwrap_or(0);
        let most = gains.max().unwrap_or(0);
        // A change that makes a part quicker is off by a part of what is left, not of what is gained.
        let mut off_ns = self.likely_ns as f64 * GAIN_OFF;
        if self.changes.iter().any(Change::is_of_the_host) {
            off_ns += likely as f64 * HOST_OFF;
        }
        let low = least.saturating_sub(off_ns as u64);
        let high = most.saturating_add(off_ns as u64);
        (low.min(likely), likely, high.max(likely))
    }
}

/// What a replay is made from.
pub struct Source<'t> {
    pub trace: &'t Trace,
    pub links: &'t Links,
    pub works: &'t WorkOfCalls,
    pub steps: &'t Steps,
    pub scene: &'t Scene<'t>,
    pub devices: &'t [DeviceTime],
    /// Why each of them did nothing.
    pub idles: &'t [Idle],
    pub link_gb_per_s: f64,
    /// Whether that is an assumption.
    pub is_link_assumed: bool,
    /// Whether batches come from workers already: how long these load is not in the trace.
    pub has_workers: bool,
}

/// Replays a trace, then with each of the usual changes, with those together that gain together, and with the sets that the
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
    // Some steps of a trace may be slower than all of them: a replay of these is held against these.
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
    // What the replay is off by, the predictions would be too.
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
        // Steps that were timed may have been longer than those that were recorded.
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

/// Where batches come from workers, and the program had to wait for some: how many steps there were up to the last such wait, and
/// how long they took. Up to there workers decide how fast the program goes, whatever else changes: none of their batches was
/// left over.
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

/// What workers take for a batch, all together, in steps for whose batches they decided.
fn pace_ns(program: &Program, (periods, delivered_ns): (usize, u64)) -> u64 {
    let loaded = program.items.iter().filter(|item| item.loading_ns > 0);
    let batches: HashSet<u32> = loaded.map(|item| item.batch).collect();
    let per_step = batches.len() as f64 / program.steps.max(1) as f64;
    (delivered_ns as f64 / periods as f64 / per_step) as u64
}

/// A wait for data that is shorter is what it takes to hand a batch over.
const LEAST_WAIT_NS: u64 = 1_000_000;

/// What predictions are made with.
struct Model<'t> {
    trace: &'t Trace,
    program: &'t Program,
    profiles: &'t [Profile],
    profiler: Profiler,
    /// How much of it there is.
    fit: Fit,
    is_link_assumed: bool,
    /// Whether some device may copy in one direction at a time.
    has_unknown_engines: bool,
    /// From a sum over the replayed steps to the mean of all steps.
    scale: f64,
    /// The same for what nodes take.
    scale_of_nodes: f64,
    error: f64,
    /// What a step takes in the trace.
    measured_ns: u64,
    /// No step takes less: than its kernels do where they run as they ran, and where they may run at once.
    floors_ns: (u64, u64),
    /// The steps for whose batches workers decided, and how long these take at the least.
    delivered: Option<(usize, u64)>,
}

impl Model<'_> {
    /// A step with these changes; as it is if they change nothing, which the base says.
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
        // A run takes as much memory as the trace: there is one at a time.
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
        // Where nothing is taken out there is nothing to be wrong about.
        let by_profiler_ns = match self.profiler == Profiler::default() {
            true => [likely_ns; 3],
            false => [
                step_ns(&changed, Fit::MOST)?,
                likely_ns,
                step_ns(&changed, Fit::LEAST)?,
            ],
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
        // What a profiler adds between kernels of a graph is in every step, with the changes and without: it is no gain.
        let least_ns = match self.profiler != Profiler::default() && has_graphs(&changed) {
            true => least_ns.min(self.graphs_close_ns(&changed, changes)?),
            false => least_ns,
        };
        let most_ns = by_profiler_ns.into_iter().fold(unknown_ns.1, u64::max);
        let of = |ns: u64, factor: f64| (ns as f64 * factor) as u64;
        let moves = |change: &Change| matches!(change, Change::Prefetch(_) | Change::AsyncOutput);
        let are_beside =
            changes.iter().any(moves) && downloads_ns >= BESIDE_FROM * likely_ns as f64;
        let slower = if are_beside { BESIDE } else { MODEL.1 };
        Some(Prediction {
            changes: changes.to_vec(),
            low_ns: of(least_ns, MODEL.0 - self.error).min(likely_ns),
            likely_ns,
            high_ns: of(most_ns, slower + self.error),
            is_effective: effective == changes.len(),
            by_profiler_ns,
            unknown_ns,
            timeline,
        })
    }

    /// The step if what graphs consist of follows each other as closely as it does where the profiler adds nothing between.
    fn graphs_close_ns(&self, changed: &Program, changes: &[Change]) -> Option<u64> {
        let mut profiles = self.profiles.to_vec();
        for profile in &mut profiles {
            let added_ns = (profile.graph_gap_ns - calibrate::GRAPH_GAP_NS).max(0.0);
            profile.graph_gap_ns -= added_ns;
            profile.engine_hop_ns = (profile.engine_hop_ns - added_ns).max(0.0);
        }
        self.usual_ns(changed, changes, &profiles)
    }

    /// The step with graphs if their kernels stand as far apart as others. How near they come to each other only a trace with
    /// graphs shows: where that is most of what a graph gains, it is not counted on.
    fn graphs_apart_ns(&self, changed: &Program, changes: &[Change]) -> Option<u64> {
        let mut profiles = self.profiles.to_vec();
        for profile in &mut profiles {
            profile.graph_gap_ns = profile.graph_gap_ns.max(profile.kernel_gap_ns);
        }
        self.usual_ns(changed, changes, &profiles)
    }

    /// What a step of a changed program takes on such devices, without what the profiler usually adds.
    fn usual_ns(&self, changed: &Program, changes: &[Change], profiles: &[Profile]) -> Option<u64> {
        let mut program = changed.clone();
        apply::without_profiler(&mut program, self.profiler, self.fit.shares[Fit::USUAL]);
        let (step_ns, _) = self.step_ns(&program, changes, profiles)?;
        Some(self.fit.scaled(Fit::USUAL, step_ns))
    }

    /// The program with these changes, and how many of them found something to change, if the link is so many times as
    /// fast as it is taken to be.
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

    /// The same for each of several sets.
    fn predict_all(&self, sets: &[Vec<Change>], base: &Prediction) -> Vec<Prediction> {
        let all = sets.iter().map(|set| self.predict(set, Some(base)));
        all.flatten().collect()
    }

    /// Only what is to be expected of each set, as far as all of its changes change something.
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

    /// The step as it is, if the profiler adds so much.
    fn unmodified_ns(&self, share: Share) -> Option<u64> {
        let mut program = self.program.clone();
        apply::without_profiler(&mut program, self.profiler, share);
        let step = self.step_ns(&program, &[], self.profiles);
        step.map(|(ns, _)| ns)
    }

    /// What a step of a program takes, and its run.
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
        let floor_ns = match changes.is_empty() {
            true => 0,
            false => copies_ns.min(self.measured_ns),
        };
        let floor_ns = floor_ns.max(self.floor_ns(changes));
        (all_ns > 0).then_some((step_ns.max(floor_ns), run))
    }

    /// No step takes less with these changes.
    fn floor_ns(&self, changes: &[Change]) -> u64 {
        match changes.iter().any(Change::is_concurrent) {
            true => self.floors_ns.1,
            false => self.floors_ns.0,
        }
    }
}

fn has_graphs(program: &Program) -> bool {
    program.nodes.iter().any(|node| node.in_graph)
}

/// What copies of all steps but the first take on the engine that has most to do: at the end of what is replayed none is
/// made ahead any more, as if there were fewer of them.
fn copies_ns(program: &Program, profiles: &[Profile]) -> u64 {
    let mut busy_ns = vec![[0u64; 2]; profiles.len()];
    for node in program.nodes.iter().filter(|node| node.step > 0) {
        let Job::HostCopy {
            direction, bytes, ..
        } = node.job
        else {
            continue;
        };
        let device = program.device_of[node.stream] as usize;
        let profile = &profiles[device];
        let engine = match direction {
            Direction::Upload if bytes as f64 <= profile.inline_bytes => continue,
            Direction::Download if profile.copy_engines >= 2.0 => 1,
            _ => 0,
        };
        let sum = &mut busy_ns[device][engine];
        *sum = sum.saturating_add(node.duration_ns);
    }
    busy_ns.into_iter().flatten().max().unwrap_or(0)
}

/// What downloads of all steps but the first take.
fn downloads_ns(program: &Program) -> u64 {
    let nodes = program.nodes.iter().filter(|node| node.step > 0);
    let downloads = nodes.filter(|node| {
        matches!(
            node.job,
            Job::HostCopy {
                direction: Direction::Download,
                ..
            }
        )
    });
    downloads
        .map(|node| node.duration_ns)
        .fold(0, u64::saturating_add)
}

/// What a step takes at the least, in the mean: the time in which any kernel of it ran, and the time in which all of
/// them would fill the device.
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

/// Whether the profiler lost kernels: launches in the middle of the steps left no work.
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
