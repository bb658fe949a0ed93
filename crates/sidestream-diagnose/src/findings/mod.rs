//! What costs time, with its evidence and what it may be worth.
//!
//! # One list of judged changes
//! Findings, what-ifs and the verdict that nothing is to be gained come from one list ([`Judged`]): each change that the replay
//! tried, by itself or on top of others, with the cause that it removes and what a step would be shorter. So they
//! cannot contradict each other. Without a replay a finding has a high end only: what the trace bounds, which
//! is the time in which the device did nothing for this reason, or in which a copy ran that kernels could have covered.
//!
//! All figures are of all steps, in the mean. Time inside a call that blocks is no saving by itself: a host that waits less may
//! have nothing else to do.

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
    /// Its name, which stays the same.
    pub code: Code,
    /// What it says, for people.
    pub text: String,
    /// How much of a step it takes, from 0 to 1.
    pub share: f64,
    /// The changes that remove it, made together; none where none was tried.
    pub changes: Vec<Change>,
    /// What a step would be shorter without it.
    pub saving_ns: Saving,
    /// No change of this kind leads a step below this.
    pub floor_ns: u64,
    /// Where to look, the worst first.
    pub evidence: Vec<Evidence>,
}

words! {
    /// Kinds of findings.
    pub enum Code {
        /// Pages of unified memory move because they are touched.
        UnifiedMemory = "UNIFIED_MEMORY",
        /// Copies from or to memory that is not pinned.
        PageableCopy = "PAGEABLE_COPY",
        /// Copies that hold up the host.
        BlockingCopy = "BLOCKING_COPY",
        /// The host waits for the device inside the step.
        SyncInStep = "SYNC_IN_STEP",
        /// Copies stand in the stream of the kernels.
        CopyOnComputeStream = "COPY_ON_COMPUTE_STREAM",
        /// The legacy default stream and the others wait for each other.
        DefaultStreamSerialization = "DEFAULT_STREAM_SERIALIZATION",
        /// The device waits for the host's launches.
        LaunchBound = "LAUNCH_BOUND",
        /// The device waits for the program's data.
        HostStarved = "HOST_STARVED",
        /// The device waits for work of the host's own.
        HostWork = "HOST_WORK",
        /// A stream waits for another.
        StreamWait = "STREAM_WAIT",
        /// Small kernels stand in one stream.
        SerialBranches = "SERIAL_BRANCHES",
        /// Two named parts of a step run one after the other.
        SerialStages = "SERIAL_STAGES",
        /// The bus is the floor.
        CopyBound = "COPY_BOUND",
        /// Communication is not covered by kernels.
        ExposedCommunication = "EXPOSED_COMMUNICATION",
        /// Time before the first step.
        Startup = "STARTUP",
        /// What is done once.
        Initialisation = "INITIALISATION",
        /// The profiler's own time.
        ProfilerOverhead = "PROFILER_OVERHEAD",
        /// Nothing is worth a change.
        NothingToGain = "NOTHING_TO_GAIN",
    }
}

impl Code {
    /// What a change removes; copies on the stream of the kernels are a cause of their own.
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

    /// Whether a change of its own is tried for it wherever it is found.
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

    /// Whether it is of use only if work does not depend on other work, which no trace says.
    pub fn is_conditional(self) -> bool {
        matches!(self, Code::SerialBranches | Code::SerialStages)
    }

    /// Whether its share is one of the whole trace, and not of a step.
    pub fn is_of_the_trace(self) -> bool {
        matches!(
            self,
            Code::Startup | Code::Initialisation | Code::ProfilerOverhead
        )
    }

    /// Whether it is no cause of how long steps are, or one only if something is so that no trace says.
    pub fn is_aside(self) -> bool {
        self.is_of_the_trace() || self.is_conditional()
    }
}

/// A range of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// The least.
    pub low: u64,
    /// What is to be expected.
    pub likely: u64,
    /// The most.
    pub high: u64,
}

impl Saving {
    /// What is not known but for its bound.
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
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// Whether that is how long the device did nothing for it, and not how long it lasted itself.
    pub is_gap: bool,
    /// The call that asked for it, where it is work of the device and the trace has the call.
    pub call: Option<String>,
    /// The operators around the call, the outer ones first.
    pub operators: Vec<String>,
}

/// What the findings are drawn from.
pub struct Grounds<'t> {
    /// The trace.
    pub trace: &'t Trace,
    /// Which call asked for which work.
    pub links: &'t Links,
    /// Which streams wait for the legacy default stream.
    pub kinds: &'t [StreamKind],
    /// Its steps.
    pub steps: &'t Steps,
    /// Where host and devices spend their time, by the ranges that the program named.
    pub ranges: &'t Ranges,
    /// What the host did.
    pub scene: &'t Scene<'t>,
    /// Which kernels exchange data with other devices.
    pub collectives: &'t Collectives,
    /// How launches reach the devices.
    pub launches: Launches,
    /// How fast pinned copies go, in bytes a nanosecond.
    pub link_gb_per_s: f64,
    /// Whether the host waited for every launch.
    pub is_launch_blocking: bool,
    /// Whether batches come from workers already. How long these load is not in a trace.
    pub has_workers: bool,
    /// The changes that were judged.
    pub changes: &'t [Change],
}

/// What a trace says about one cause on one device.
pub struct Ground {
    /// Which.
    pub code: Code,
    /// What it says, for people.
    pub text: String,
    /// How much of a step it takes, from 0 to 1.
    pub share: f64,
    /// Whether that is worth a line.
    pub is_worth: bool,
    /// What its removal can be worth at the most.
    pub most_ns: u64,
    /// No change of this kind leads a step below this.
    pub floor_ns: u64,
    /// Where to look, the worst first.
    pub evidence: Vec<Evidence>,
    /// Whether what it advises is the change that belongs to it, so that a replay says what that is worth.
    pub is_of_its_change: bool,
}

impl Grounds<'_> {
    /// What the trace says about each cause on one device.
    fn of(&self, view: &View) -> Vec<Ground> {
        if self.is_launch_blocking {
            // What else the host costs cannot be told from this.
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
