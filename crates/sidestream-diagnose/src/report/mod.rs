//! All that is said about a trace, as values.

mod analyze;
mod doubts;
mod link;

pub use link::{LINK_GB_PER_S, Link, is_speed};

use std::collections::{BTreeMap, HashMap};

use crate::digest::Digest;
use crate::excerpt::Excerpt;
use crate::findings::{Finding, Judged};
use crate::idle::{Cause, Idle};
use crate::measure::{
    Blocking, Copies, DeviceMemory, DeviceTime, Launches, Line, Operator, PerStep, Ranges, Steps,
};
use crate::model::{Base, Launched, Name, Names, Source, Stream, Thread, Warning};
use crate::replay::{Change, Replay};
use crate::timeline::Timeline;

/// How many kernels and operators are listed.
pub const LISTED: usize = 20;

/// What the caller knows besides the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// How fast copies from and to pinned memory go, in GB/s.
    pub link_gb_per_s: Option<f64>,
    /// The sets of changes to predict; none for the usual ones.
    pub what_if: Option<Vec<Vec<Change>>>,
}

/// All that is said about a trace.
#[derive(Debug)]
pub struct Report {
    /// Who wrote it.
    pub source: Source,
    /// How many events it has.
    pub events: u64,
    /// Its place among those that ran together.
    pub rank: Option<u32>,
    /// How many ran together.
    pub world: Option<u32>,
    /// When its first row begins, on its own clock.
    pub start_ns: i64,
    /// What each device did, and why it did nothing.
    pub devices: Vec<(DeviceTime, Idle)>,
    /// How many multiprocessors the devices have, where the trace says that, and all have as many.
    pub sms: Option<u32>,
    /// The streams, to be named.
    pub streams: Vec<Stream>,
    /// The threads, to be named.
    pub threads: Vec<Thread>,
    /// The names, to be shown.
    pub names: Names,
    /// The steps.
    pub steps: Steps,
    /// What a step takes without the profiler, where the trace states that it was timed.
    pub base: Base,
    /// What the devices did in one of them, in the median.
    pub per_step: PerStep,
    /// What ran in the step nearest to the median; none without any work.
    pub timeline: Option<Timeline>,
    /// What ran in some steps, to be looked at: in all of them, if they are few.
    pub zooms: Vec<Timeline>,
    /// The rows of the trace around that step.
    pub excerpt: Excerpt,
    /// The copies.
    pub copies: Vec<Copies>,
    /// How launches reach the devices.
    pub launches: Launches,
    /// What held up the host.
    pub blocking: Vec<Blocking>,
    /// All kernels by name, the longest first; outputs list [`LISTED`].
    pub kernels: Vec<Line>,
    /// All operators by name, the longest first; outputs list [`LISTED`].
    pub operators: Vec<Line>,
    /// Operators, ranges and calls by name and shapes, as `key_averages` of PyTorch has them, in no sequence that means anything.
    pub rows: Vec<Operator>,
    /// The time of host and devices by the ranges that the program named.
    pub ranges: Ranges,
    /// How the longest kernel of each name was launched, where the trace says it.
    pub launched: HashMap<Name, Launched>,
    /// The memory of devices over time, where the trace shows it.
    pub memory: Vec<DeviceMemory>,
    /// The changes that a replay judged and that gain anything, the most valuable first, one for each code: what
    /// findings, predictions and the verdict that nothing is to be gained are drawn from. Empty without a replay.
    pub judged: Vec<Judged>,
    /// What costs time, the most valuable first.
    pub findings: Vec<Finding>,
    /// The speed that pinned copies are taken to have, and where that is from.
    pub link: (f64, Link),
    /// How well a replay explains the trace and what changes are worth, or why there is none.
    pub replay: Result<Replay, &'static str>,
    /// Whether the caller asked for these changes, so that each is of interest.
    pub what_if_asked: bool,
    /// What it exchanged with other ranks.
    pub digest: Digest,
    /// What a reader has to know.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// The time of a step in the mean of all; of the longest device's whole time where there are no steps.
    pub fn step_ns(&self) -> u64 {
        let spans = self.devices.iter().map(|(device, _)| device.span_ns);
        self.steps.mean_ns().or(spans.max()).unwrap_or(0)
    }

    /// What shares and savings are parts of: a step without the profiler where there is a replay, else as it was measured.
    pub fn judged_step_ns(&self) -> u64 {
        match &self.replay {
            Ok(replay) if replay.is_ok() => replay.unprofiled_ns,
            _ => self.step_ns(),
        }
    }

    /// How much of its time a device idles outside of the steps, from 0 to 1; nothing without steps.
    pub fn idle_outside(&self, (device, idle): &(DeviceTime, Idle)) -> f64 {
        let sum = |causes: &BTreeMap<Cause, u64>| -> u64 { causes.values().sum() };
        let outside_ns = sum(&idle.by_cause).saturating_sub(sum(&idle.in_steps));
        outside_ns as f64 / device.span_ns.max(1) as f64
    }

    /// Where something lies: how long after the start of the trace, and in which step, from 0, if the
    /// devices were in one.
    pub fn place(&self, time_ns: i64) -> (u64, Option<usize>) {
        let offset_ns = time_ns.max(self.start_ns).abs_diff(self.start_ns);
        (offset_ns, self.steps.on_device(time_ns))
    }

    /// The idle time of a step by cause, in the mean of the steps and of the devices; of the whole trace
    /// if it has no steps.
    pub fn idle_per_step(&self) -> BTreeMap<Cause, u64> {
        let mut causes: BTreeMap<Cause, u64> = BTreeMap::new();
        for (_, idle) in &self.devices {
            for (cause, ns) in &idle.by_cause {
                let sum = causes.entry(*cause).or_default();
                *sum = sum.saturating_add(*ns);
            }
        }
        let steps = self.per_step.steps;
        // What lies outside of the steps is no part of one.
        causes.retain(|cause, _| steps == 0 || *cause != Cause::Startup);
        let parts = (steps.max(1) * self.devices.len().max(1)) as u64;
        causes.values_mut().for_each(|ns| *ns /= parts);
        causes
    }
}
