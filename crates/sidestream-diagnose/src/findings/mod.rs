//! What costs time, with its evidence and what it may be worth.
//!
//! A saving is a range. Its high end is what the trace bounds: time in which the device did nothing
//! for this reason, or in which a copy ran that kernels could have covered. No end of it leads below
//! the floor of a step: the work of the device, the copies of each direction and, for what does not
//! change it, the host's own time. Time inside a call that blocks is no saving: a host that waits
//! less may have nothing else to do.
//!
//! All figures are of steps of a usual length, scaled to the median one, so that parts of a step add
//! up to no more than a step.

mod copies;
mod host;
mod streams;
mod units;
mod verdict;
mod view;

pub use host::is_launch_blocking;
pub use units::{size, time};
pub use verdict::{conclude, simulated};

use std::cmp::Reverse;

use sidestream::op::StreamKind;

use crate::idle::{Cause, Idle, Scene};
use crate::measure::{Collectives, DeviceTime, Launches, Links, Steps};
use crate::model::Trace;
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
    /// What a step would be shorter without it.
    pub saving_ns: Saving,
    /// No change of this kind leads a step below this.
    pub floor_ns: u64,
    /// Where to look, the worst first.
    pub evidence: Vec<Evidence>,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// Copies from or to memory that is not pinned.
    PageableCopy,
    /// Copies that hold up the host.
    BlockingCopy,
    /// The host waits for the device inside the step.
    SyncInStep,
    /// Copies stand in the stream of the kernels.
    CopyOnComputeStream,
    /// The legacy default stream and the others wait for each other.
    DefaultStreamSerialization,
    /// The device waits for the host's launches.
    LaunchBound,
    /// The device waits for the program's data, or for other work of the host.
    HostStarved,
    /// Small kernels stand in one stream.
    SerialBranches,
    /// The bus is the floor.
    CopyBound,
    /// Communication is not covered by kernels.
    ExposedCommunication,
    /// Time before the first step.
    Startup,
    /// The profiler's own time.
    ProfilerOverhead,
    /// Nothing is worth a change.
    NothingToGain,
}

impl Code {
    /// The name in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::PageableCopy => "PAGEABLE_COPY",
            Code::BlockingCopy => "BLOCKING_COPY",
            Code::SyncInStep => "SYNC_IN_STEP",
            Code::CopyOnComputeStream => "COPY_ON_COMPUTE_STREAM",
            Code::DefaultStreamSerialization => "DEFAULT_STREAM_SERIALIZATION",
            Code::LaunchBound => "LAUNCH_BOUND",
            Code::HostStarved => "HOST_STARVED",
            Code::SerialBranches => "SERIAL_BRANCHES",
            Code::CopyBound => "COPY_BOUND",
            Code::ExposedCommunication => "EXPOSED_COMMUNICATION",
            Code::Startup => "STARTUP",
            Code::ProfilerOverhead => "PROFILER_OVERHEAD",
            Code::NothingToGain => "NOTHING_TO_GAIN",
        }
    }
}

/// A range of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saving {
    /// The least.
    pub low: u64,
    /// What is to be expected.
    pub likely: u64,
    /// The most.
    pub high: u64,
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
}

impl Grounds<'_> {
    /// The findings about one device, the most valuable first.
    pub fn findings(&self, device: &DeviceTime, idle: &Idle) -> Vec<Finding> {
        let view = View::of(self, device, idle);
        if self.is_launch_blocking {
            // What else the host costs cannot be told from this.
            let findings = [
                view.launch_blocking(),
                view.pageable(),
                view.communication(),
            ];
            return findings.into_iter().flatten().collect();
        }
        let findings = [
            view.pageable(),
            view.blocking(),
            view.sync(),
            view.compute_stream(),
            view.default_stream(),
            view.launch_bound(),
            view.starved(),
            view.branches(),
            view.copy_bound(),
            view.communication(),
        ];
        let mut findings: Vec<Finding> = findings.into_iter().flatten().collect();
        sort(&mut findings);
        findings.extend(view.excluded(Cause::Startup, Code::Startup));
        findings.extend(view.excluded(Cause::ProfilerOverhead, Code::ProfilerOverhead));
        findings
    }
}

/// The most valuable first.
fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|f| Reverse((f.saving_ns.likely, f.saving_ns.high)));
}
