//! The report on a trace, as values.

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
    add,
};
use crate::model::{Base, Launched, Name, Names, Source, Stream, Thread, Warning};
use crate::replay::{Change, Replay};
use crate::timeline::Timeline;

/// Number of kernels and operators that are listed.
pub const LISTED: usize = 20;

/// What the caller knows besides the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The speed of copies from and to pinned memory, in GB/s.
    pub link_gb_per_s: Option<f64>,
    /// The sets of changes to predict; `None` for the usual ones.
    pub what_if: Option<Vec<Vec<Change>>>,
}

/// The report on a trace.
#[derive(Debug)]
pub struct Report {
    /// The program that wrote the trace.
    pub source: Source,
    /// Number of events in the trace.
    pub events: u64,
    /// Its rank among those that ran together.
    pub rank: Option<u32>,
    /// Number of ranks that ran together.
    pub world: Option<u32>,
    /// Start of its first row, on its own clock.
    pub start_ns: i64,
    /// The activity of each device, and the causes of its idle time.
    pub devices: Vec<(DeviceTime, Idle)>,
    /// Number of multiprocessors of the devices, where the trace states it and all have equally many.
    pub sms: Option<u32>,
    /// The streams, for their names.
    pub streams: Vec<Stream>,
    /// The threads, for their names.
    pub threads: Vec<Thread>,
    /// The strings of all names.
    pub names: Names,
    /// The steps.
    pub steps: Steps,
    /// The time of a step without the profiler, where the trace states a measurement.
    pub base: Base,
    /// The activity of the devices in the median step.
    pub per_step: PerStep,
    /// The activity in the step nearest to the median; `None` without any work.
    pub timeline: Option<Timeline>,
    /// The activity in some steps, for a closer look: all of them, if they are few.
    pub zooms: Vec<Timeline>,
    /// The rows of the trace around that step.
    pub excerpt: Excerpt,
    /// The copies.
    pub copies: Vec<Copies>,
    /// How launches reach the devices.
    pub launches: Launches,
    /// The calls that blocked the host.
    pub blocking: Vec<Blocking>,
    /// All kernels by name, the longest first; outputs list [`LISTED`].
    pub kernels: Vec<Line>,
    /// All operators by name, the longest first; outputs list [`LISTED`].
    pub operators: Vec<Line>,
    /// Operators, ranges and calls by name and shapes, as in PyTorch's `key_averages`, in no particular order.
    pub rows: Vec<Operator>,
    /// The time of host and devices by the ranges that the program named.
    pub ranges: Ranges,
    /// How the longest kernel of each name was launched, where the trace states it.
    pub launched: HashMap<Name, Launched>,
    /// The memory of devices over time, where the trace shows it.
    pub memory: Vec<DeviceMemory>,
    /// The changes that a replay judged and that gain anything, the most valuable first, one for each code: findings,
    /// predictions and the verdict that nothing is to be gained come from them. Empty without a replay.
    pub judged: Vec<Judged>,
    /// What costs time, the most valuable first.
    pub findings: Vec<Finding>,
    /// The speed assumed for pinned copies, and its source.
    pub link: (f64, Link),
    /// How well a replay explains the trace and what changes gain, or why there is none.
    pub replay: Result<Replay, &'static str>,
    /// Whether the caller asked for these changes, so that each is of interest.
    pub what_if_asked: bool,
    /// Its exchanges with other ranks.
    pub digest: Digest,
    /// Warnings that affect the results.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Returns the mean time of all steps; without steps, the span of the device with the longest span.
    pub fn step_ns(&self) -> u64 {
        let spans = self.devices.iter().map(|(device, _)| device.span_ns);
        self.steps.mean_ns().or(spans.max()).unwrap_or(0)
    }

    /// Returns the time to which shares and savings refer: a step without the profiler where there is a replay, otherwise the
    /// measured one.
    pub fn judged_step_ns(&self) -> u64 {
        match &self.replay {
            Ok(replay) if replay.is_ok() => replay.unprofiled_ns,
            _ => self.step_ns(),
        }
    }

    /// Returns the part of a device's time in which it is idle outside of the steps, from 0 to 1; 0 without steps.
    pub fn idle_outside(&self, (device, idle): &(DeviceTime, Idle)) -> f64 {
        let sum = |causes: &BTreeMap<Cause, u64>| -> u64 { causes.values().sum() };
        let outside_ns = sum(&idle.by_cause).saturating_sub(sum(&idle.in_steps));
        outside_ns as f64 / device.span_ns.max(1) as f64
    }

    /// Returns the place of a moment: its time since the start of the trace, and the index of the step, from 0, if the devices
    /// were in one.
    pub fn place(&self, time_ns: i64) -> (u64, Option<usize>) {
        let offset_ns = time_ns.max(self.start_ns).abs_diff(self.start_ns);
        (offset_ns, self.steps.on_device(time_ns))
    }

    /// Returns the idle time of a step by cause, as the mean of the steps and of the devices; of the whole trace if it has no
    /// steps.
    pub fn idle_per_step(&self) -> BTreeMap<Cause, u64> {
        let mut causes: BTreeMap<Cause, u64> = BTreeMap::new();
        for (cause, ns) in self.devices.iter().flat_map(|(_, idle)| &idle.in_steps) {
            add(causes.entry(*cause).or_default(), *ns);
        }
        let parts = self.parts();
        causes.values_mut().for_each(|ns| *ns /= parts);
        causes
    }

    /// Returns by what a sum over the idle time in steps is divided to be the mean of a step and of the devices. The first step
    /// does not count: its start on the devices is not known.
    pub fn parts(&self) -> u64 {
        let steps = self.per_step.steps.saturating_sub(1);
        (steps.max(1) * self.devices.len().max(1)) as u64
    }
}
