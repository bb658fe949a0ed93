//! Findings: what costs time, with its evidence and what its removal may gain.
//!
//! # One list of judged changes
//! Findings, what-ifs and the verdict that nothing is to be gained come from one list ([`Judged`]): each change that the replay
//! tried, by itself or on top of others, with the cause that it removes and the time by which it shortens a step. So they
//! cannot contradict each other. Without a replay a finding has a high end only: the bound that the trace gives, which is the
//! time in which the device was idle for this cause, or in which a copy ran that kernels could have covered.
//!
//! All figures are means over all steps. Time inside a blocking call is not a saving by itself: a host that waits less may have
//! nothing else to do.

mod copies;
mod host;
mod judge;
mod launches;
mod streams;
mod units;
mod view;
mod waits;

pub use host::is_launch_blocking;
pub use judge::{Judged, findings, judge};
pub use units::{size, time};

use serde::Serialize;
use sidestream::op::StreamKind;

use crate::idle::Scene;
use crate::measure::{Collectives, Launches, Links, Ranges, Steps};
use crate::model::Trace;
use crate::replay::Change;
use crate::words::words;
use view::View;

/// One thing that costs time.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Its code, which does not change between versions.
    pub code: Code,
    /// Its text, for people.
    pub text: String,
    /// Its share of a step, from 0 to 1.
    pub share: f64,
    /// The changes that remove it, made together; empty where none was tried.
    pub changes: Vec<Change>,
    /// Time by which a step would be shorter without it.
    pub saving_ns: Saving,
    /// The least time of a step that a change of this kind can reach.
    pub floor_ns: u64,
    /// Where to look, the worst first.
    pub evidence: Vec<Evidence>,
}

words! {
    /// Kinds of findings.
    pub enum Code {
        /// Pages of unified memory migrate on page faults.
        UnifiedMemory = "UNIFIED_MEMORY",
        /// Copies from or to memory that is not pinned.
        PageableCopy = "PAGEABLE_COPY",
        /// Copies block the host.
        BlockingCopy = "BLOCKING_COPY",
        /// The host waits for the device inside the step.
        SyncInStep = "SYNC_IN_STEP",
        /// Copies are in the stream of the kernels.
        CopyOnComputeStream = "COPY_ON_COMPUTE_STREAM",
        /// The legacy default stream and the others wait for each other.
        DefaultStreamSerialization = "DEFAULT_STREAM_SERIALIZATION",
        /// The device waits for the host's launches.
        LaunchBound = "LAUNCH_BOUND",
        /// The device waits for the program's data.
        HostStarved = "HOST_STARVED",
        /// The device waits for the host's own work.
        HostWork = "HOST_WORK",
        /// A stream waits for another.
        StreamWait = "STREAM_WAIT",
        /// Small kernels are all in one stream.
        SerialBranches = "SERIAL_BRANCHES",
        /// Two named parts of a step run one after the other.
        SerialStages = "SERIAL_STAGES",
        /// The bandwidth of the bus is the limit.
        CopyBound = "COPY_BOUND",
        /// Communication is not covered by kernels.
        ExposedCommunication = "EXPOSED_COMMUNICATION",
        /// Time before the first step.
        Startup = "STARTUP",
        /// One-time work, such as loading code.
        Initialisation = "INITIALISATION",
        /// The profiler's own time.
        ProfilerOverhead = "PROFILER_OVERHEAD",
        /// Nothing is worth a change.
        NothingToGain = "NOTHING_TO_GAIN",
    }
}

impl Code {
    /// Returns the cause that a change removes; copies on the stream of the kernels are a separate cause.
    pub fn of(change: &Change, copies_on_compute: bool) -> Code {
        match change {
            Change::Pinned => Code::PageableCopy,
            Change::Prefetch(_) if copies_on_compute => Code::CopyOnComputeStream,
            Change::Prefetch(_) | Change::DropWait(..) => Code::StreamWait,
            Change::NoSync => Code::SyncInStep,
            Change::AsyncOutput => Code::BlockingCopy,
            Change::Graphs | Change::Fused(_) => Code::LaunchBound,
            Change::Workers(_) | Change::MoreWorkers(_) => Code::HostStarved,
            Change::HostWork(_) => Code::HostWork,
            Change::SecondStream => Code::SerialBranches,
            Change::Pipeline(_) => Code::SerialStages,
            Change::NonBlockingStreams => Code::DefaultStreamSerialization,
        }
    }

    /// Returns whether a replay tries a change for this cause wherever the cause is found.
    pub fn is_tried(self) -> bool {
        matches!(
            self,
            Code::PageableCopy
                | Code::CopyOnComputeStream
                | Code::StreamWait
                | Code::SyncInStep
                | Code::BlockingCopy
                | Code::HostStarved
                | Code::HostWork
                | Code::DefaultStreamSerialization
        )
    }

    /// Returns whether the change for this cause helps only if work does not depend on other work, which no trace shows.
    pub fn is_conditional(self) -> bool {
        matches!(self, Code::SerialBranches | Code::SerialStages)
    }

    /// Returns whether the share of a finding with this code is a share of the whole trace, and not of a step.
    pub fn is_of_the_trace(self) -> bool {
        matches!(
            self,
            Code::Startup | Code::Initialisation | Code::ProfilerOverhead
        )
    }

    /// Returns whether this cause does not explain the time of a step, or only under a condition that no trace shows.
    pub fn is_aside(self) -> bool {
        self.is_of_the_trace() || self.is_conditional()
    }
}

/// A range of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// The least, in nanoseconds.
    pub low: u64,
    /// The expected value.
    pub likely: u64,
    /// The most.
    pub high: u64,
}

impl Saving {
    /// Returns a saving of which only the upper bound is known.
    pub fn at_most(high: u64) -> Saving {
        Saving {
            high,
            ..Saving::default()
        }
    }
}

/// Something in the trace to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// What it is: a call, a copy, a range.
    pub what: String,
    /// Its start.
    pub start_ns: i64,
    /// Its duration.
    pub duration_ns: u64,
    /// Whether the duration is how long the device was idle because of it, and not how long it lasted itself.
    pub is_gap: bool,
    /// The call that submitted it, if it is device work and the trace has the call.
    pub call: Option<String>,
    /// The operators around the call, the outer ones first.
    pub operators: Vec<String>,
}

/// The data from which findings are drawn.
pub struct Grounds<'t> {
    /// The trace.
    pub trace: &'t Trace,
    /// Which call submitted which work.
    pub links: &'t Links,
    /// Which streams wait for the legacy default stream.
    pub kinds: &'t [StreamKind],
    /// Its steps.
    pub steps: &'t Steps,
    /// Where host and devices spend their time, by the ranges that the program named.
    pub ranges: &'t Ranges,
    /// The host activity.
    pub scene: &'t Scene<'t>,
    /// Which kernels exchange data with other devices.
    pub collectives: &'t Collectives,
    /// How launches reach the devices.
    pub launches: Launches,
    /// The speed of pinned copies, in bytes per nanosecond.
    pub link_gb_per_s: f64,
    /// Whether the host waited for every launch.
    pub is_launch_blocking: bool,
    /// Whether batches already come from data loader workers. A trace does not show how long these spend loading.
    pub has_workers: bool,
    /// The changes that were judged.
    pub changes: &'t [Change],
}

/// The evidence of a trace for one cause on one device.
pub struct Ground {
    /// The cause.
    pub code: Code,
    /// Its text, for people.
    pub text: String,
    /// Its share of a step, from 0 to 1.
    pub share: f64,
    /// Whether that is worth a line.
    pub is_worth: bool,
    /// The maximum gain of removing the cause.
    pub most_ns: u64,
    /// The least time of a step that a change of this kind can reach.
    pub floor_ns: u64,
    /// Where to look, the worst first.
    pub evidence: Vec<Evidence>,
    /// Whether this finding advises the change that the replay tries for its `code`, so that the replay predicts the gain of
    /// the advice.
    pub is_of_its_change: bool,
}

impl Grounds<'_> {
    /// Returns the evidence of the trace for each cause on one device.
    fn of(&self, view: &View) -> Vec<Ground> {
        if self.is_launch_blocking {
            // The other costs of the host cannot be judged from this trace.
            let grounds = [
                Some(view.launch_blocking()),
                view.pageable(),
                view.communication(),
            ];
            return grounds.into_iter().flatten().collect();
        }
        let grounds = [
            view.unified(),
            view.pageable(),
            Some(view.blocking()),
            Some(view.sync()),
            view.compute_stream(),
            view.default_stream(),
            Some(view.launch_bound()),
            Some(view.starved()),
            Some(view.host_work()),
            Some(view.stream_wait()),
            view.branches(),
            view.stages(),
            view.copy_bound(),
            view.communication(),
        ];
        grounds.into_iter().flatten().collect()
    }
}
