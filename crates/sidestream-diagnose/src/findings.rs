//! What costs time, with its evidence and what it may be worth.
//!
//! A saving is a range. Its high end is what the trace bounds: time in which the device did nothing
//! for this reason, or in which a copy ran that kernels could have covered. No end of it leads below
//! the floor of a step: the work of the device, the copies of each direction, the host's own time.
//! Time inside a call that blocks is no saving: a host that waits less may have nothing else to do.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::idle::{Cause, Idle, Stretch};
use crate::measure::{Class, DeviceTime, Launches, Links, Steps};
use crate::model::{ApiKind, Direction, Memory, Trace, What, Work};
use crate::replay::{Change, Replay};

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
}

/// What the findings are drawn from.
pub struct Grounds<'t> {
    /// The trace.
    pub trace: &'t Trace,
    /// Which call asked for which work.
    pub links: &'t Links,
    /// Its steps.
    pub steps: &'t Steps,
    /// How launches reach the devices.
    pub launches: Launches,
    /// How fast pinned copies go, in bytes a nanosecond.
    pub link_gb_per_s: f64,
}

/// Less than this part of a step is not worth a line.
const WORTH: f64 = 0.02;
/// Below this, a change is not worth its trouble.
const GAIN: f64 = 0.05;

impl Grounds<'_> {
    /// How long the copies of one direction take at the least: as they did where the memory is
    /// pinned, at the speed of the link where it is not.
    fn link_ns(&self, device: &DeviceTime, which: Direction) -> u64 {
        let trace = self.trace;
        let mut sum = 0;
        for work in &trace.work {
            let stream = &trace.streams[work.stream.0 as usize];
            let mine = (stream.process, stream.device) == (device.process, device.device);
            if let What::Copy {
                direction, bytes, ..
            } = work.what
                && mine
                && direction == which
            {
                let at_link = (bytes as f64 / self.link_gb_per_s) as u64;
                sum = u64::saturating_add(
                    sum,
                    match host_memory(work) {
                        Memory::Pageable => at_link.min(work.duration_ns),
                        _ => work.duration_ns,
                    },
                );
            }
        }
        sum
    }

    /// The findings about one device, the most valuable first.
    pub fn findings(&self, device: &DeviceTime, idle: &Idle) -> Vec<Finding> {
        let view = View::of(self, device, idle);
        let mut findings: Vec<Finding> = [
            view.pageable(),
            view.blocking(),
            view.sync(),
            view.compute_stream(),
            view.launch_bound(),
            view.starved(),
            view.branches(),
            view.copy_bound(),
            view.communication(),
        ]
        .into_iter()
        .flatten()
        .collect();
        findings.sort_by_key(|f| Reverse((f.saving_ns.likely, f.saving_ns.high)));
        findings.extend(view.excluded(Cause::Startup, Code::Startup));
        findings.extend(view.excluded(Cause::ProfilerOverhead, Code::ProfilerOverhead));
        findings
    }
}

/// Takes the savings from a replay, where there is one for them. Bounds from the trace stay where they
/// are narrower.
pub fn simulated(findings: &mut [Finding], replay: &Replay) {
    use Change::{Graphs, NoSync, Pinned, Prefetch, SecondStream, Workers};
    let step_ns = |changes: &[Change]| match changes {
        [] => Some(replay.unprofiled_ns),
        _ => {
            let same = replay.predictions.iter().find(|p| p.changes == changes);
            same.map(|p| p.likely_ns)
        }
    };
    for finding in findings.iter_mut() {
        // What it is worth shows where nothing else is in the way.
        let (without, with): (&[Change], &[Change]) = match finding.code {
            Code::PageableCopy => (&[], &[Pinned]),
            Code::BlockingCopy => (&[Pinned], &[Pinned, NoSync]),
            Code::SyncInStep => (&[], &[NoSync]),
            Code::CopyOnComputeStream => (&[Pinned, NoSync], &[Pinned, Prefetch(2), NoSync]),
            Code::LaunchBound => (&[], &[Graphs]),
            Code::HostStarved => (&[], &[Workers(4)]),
            Code::SerialBranches => (&[], &[SecondStream]),
            _ => continue,
        };
        let (Some(without), Some(with)) = (step_ns(without), step_ns(with)) else {
            continue;
        };
        let old = finding.saving_ns;
        let likely = match finding.code {
            // A graph saves work of the host that costs no idle time too: that is no gain.
            Code::LaunchBound => without.saturating_sub(with).min(old.high),
            _ => without.saturating_sub(with),
        };
        finding.saving_ns = match finding.code {
            // Whether the kernels depend on each other, no replay knows.
            Code::SerialBranches => Saving {
                low: 0,
                likely: 0,
                high: likely,
            },
            _ => Saving {
                low: old.low.min(likely / 10 * 9),
                likely,
                high: old.high.max(likely).min(replay.measured_ns),
            },
        };
    }
    findings.sort_by_key(|f| Reverse((f.saving_ns.likely, f.saving_ns.high)));
}

/// Says so where nothing is worth a change.
pub fn conclude(findings: &mut Vec<Finding>, steps: &Steps, device: &DeviceTime) {
    let step_ns = steps.median_ns().unwrap_or(device.span_ns) as f64;
    let worth = |f: &Finding| f.saving_ns.likely.max(f.saving_ns.high / 2) as f64;
    if findings.iter().map(worth).any(|ns| ns >= GAIN * step_ns) {
        return;
    }
    let busy = device.busy_ns() as f64 / device.span_ns.max(1) as f64;
    findings.push(Finding {
        code: Code::NothingToGain,
        text: format!(
            "no change of streams, copies or waits is worth 5 % of a step; the device is busy for \
             {:.1} % of the time",
            100.0 * busy
        ),
        share: 0.0,
        saving_ns: Saving::default(),
        evidence: Vec::new(),
    });
}

/// One device, by the step.
struct View<'a> {
    grounds: &'a Grounds<'a>,
    device: &'a DeviceTime,
    idle: &'a Idle,
    /// How many steps the sums are of.
    steps: u64,
    /// The time of a step; of the whole trace, if there are no steps.
    step_ns: u64,
    /// No change leads below this.
    floor_ns: u64,
}

impl<'a> View<'a> {
    fn of(grounds: &'a Grounds, device: &'a DeviceTime, idle: &'a Idle) -> View<'a> {
        let median = grounds.steps.median_ns();
        let steps = median.map_or(1, |_| grounds.steps.steps.len() as u64);
        let step_ns = median.unwrap_or(device.span_ns).max(1);
        let uploads = grounds.link_ns(device, Direction::Upload);
        let downloads = grounds.link_ns(device, Direction::Download);
        let floor_ns = device.kernel_ns().max(uploads).max(downloads) / steps;
        View {
            grounds,
            device,
            idle,
            steps,
            step_ns,
            floor_ns,
        }
    }

    /// The idle time of a cause, by the step. A sum over the steps may be more than its share of a
    /// median step.
    fn idle_ns(&self, cause: Cause) -> u64 {
        let sum = self.idle.by_cause.get(&cause).copied().unwrap_or(0);
        (sum / self.steps).min(self.step_ns)
    }

    fn stretches(&self, cause: Cause) -> Vec<Evidence> {
        let longest = self.idle.longest.get(&cause);
        let evidence = |stretch: &Stretch| Evidence {
            what: match stretch.because {
                Some(name) => self.grounds.trace.names.text(name).to_owned(),
                None => "nothing that the trace shows".to_owned(),
            },
            start_ns: stretch.start_ns,
            duration_ns: stretch.duration_ns,
        };
        longest.into_iter().flatten().map(evidence).collect()
    }

    /// A finding, if it is worth a line. No saving leads below the floor.
    fn finding(
        &self,
        code: Code,
        taken_ns: u64,
        saving: (u64, u64, u64),
        text: String,
        evidence: Vec<Evidence>,
    ) -> Option<Finding> {
        let share = taken_ns as f64 / self.step_ns as f64;
        if share < WORTH {
            return None;
        }
        let most = self.step_ns.saturating_sub(self.floor_ns);
        Some(Finding {
            code,
            text,
            share: share.min(1.0),
            saving_ns: Saving {
                low: saving.0.min(most),
                likely: saving.1.min(most),
                high: saving.2.min(most),
            },
            evidence,
        })
    }

    /// Host copies of the device that pass a test: their sum by the step and the longest of them.
    fn host_copies(&self, test: impl Fn(&Work) -> bool) -> CopySum {
        let trace = self.grounds.trace;
        let mut sum = CopySum::default();
        let mut longest: Vec<&Work> = Vec::new();
        for work in &trace.work {
            let stream = &trace.streams[work.stream.0 as usize];
            let mine = (stream.process, stream.device) == (self.device.process, self.device.device);
            if !mine || !work.is_host_copy() || !test(work) {
                continue;
            }
            let covered = self.device.kernels.within_ns(work.start_ns, work.end_ns());
            let exposed_ns = work.duration_ns.saturating_sub(covered);
            sum.exposed_ns = sum.exposed_ns.saturating_add(exposed_ns);
            sum.duration_ns = sum.duration_ns.saturating_add(work.duration_ns);
            if let What::Copy { bytes, .. } = work.what {
                sum.bytes = sum.bytes.saturating_add(bytes);
            }
            longest.push(work);
            if longest.len() >= 64 {
                keep_longest(&mut longest);
            }
        }
        keep_longest(&mut longest);
        sum.evidence = longest
            .iter()
            .map(|work| Evidence {
                what: trace.names.text(work.name).to_owned(),
                start_ns: work.start_ns,
                duration_ns: work.duration_ns,
            })
            .collect();
        sum.exposed_ns /= self.steps;
        sum.duration_ns /= self.steps;
        sum.bytes /= self.steps;
        sum
    }

    fn pageable(&self) -> Option<Finding> {
        let copies = self.host_copies(|work| host_memory(work) == Memory::Pageable);
        let pinned_ns = (copies.bytes as f64 / self.grounds.link_gb_per_s) as u64;
        let quicker = copies.duration_ns.saturating_sub(pinned_ns);
        let idle = self.idle_ns(Cause::PageableCopy);
        let exposed = copies.exposed_ns.min(quicker);
        let text = format!(
            "copies of {} a step use pageable memory: the host copies the bytes too, and waits; \
             pinned memory takes {} instead of {}",
            size(copies.bytes),
            time(pinned_ns),
            time(copies.duration_ns)
        );
        self.finding(
            Code::PageableCopy,
            copies.exposed_ns.saturating_add(idle),
            (
                exposed / 2,
                exposed.saturating_add(idle / 2),
                exposed.saturating_add(idle),
            ),
            text,
            copies.evidence,
        )
    }

    fn blocking(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::BlockingCopy);
        let text = format!(
            "after a copy that holds up the host the device does nothing for {} a step: the host \
             could not run ahead",
            time(idle)
        );
        let evidence = self.stretches(Cause::BlockingCopy);
        self.finding(
            Code::BlockingCopy,
            idle,
            (0, idle / 4 * 3, idle),
            text,
            evidence,
        )
    }

    fn sync(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::SyncInStep);
        let text = format!(
            "after synchronisations the device does nothing for {} a step; the time inside them is \
             longer, and most of it is the device's work",
            time(idle)
        );
        let evidence = self.stretches(Cause::SyncInStep);
        self.finding(
            Code::SyncInStep,
            idle,
            (0, idle / 4 * 3, idle),
            text,
            evidence,
        )
    }

    fn compute_stream(&self) -> Option<Finding> {
        let trace = self.grounds.trace;
        // The stream that has most of the kernels.
        let mut kernels: BTreeMap<_, u64> = BTreeMap::new();
        for work in &trace.work {
            if let What::Kernel(_) = work.what {
                let sum = kernels.entry(work.stream).or_default();
                *sum = sum.saturating_add(work.duration_ns);
            }
        }
        let compute = self.device.streams.iter().map(|load| load.stream);
        let compute = compute.max_by_key(|s| kernels.get(s).copied().unwrap_or(0))?;
        let copies = self.host_copies(|work| work.stream == compute);
        let text = format!(
            "copies of {} a step stand in the stream of the kernels, so that neither runs while the \
             other does: {} of them is not covered",
            size(copies.bytes),
            time(copies.exposed_ns)
        );
        let exposed = copies.exposed_ns;
        self.finding(
            Code::CopyOnComputeStream,
            exposed,
            (exposed / 2, exposed / 10 * 9, exposed),
            text,
            copies.evidence,
        )
    }

    fn launch_bound(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::LaunchBound);
        let per_mille = self.grounds.launches.launch_bound_per_mille;
        let text = format!(
            "the device waits {} a step for launches: {} of 100 kernels start with nothing queued \
             behind them; a CUDA graph submits all of them at once",
            time(idle),
            per_mille / 10
        );
        let evidence = self.stretches(Cause::LaunchBound);
        // The profiler itself slows down launches, so that not all of it is there without.
        self.finding(
            Code::LaunchBound,
            idle,
            (idle / 2, idle / 10 * 9, idle),
            text,
            evidence,
        )
    }

    fn starved(&self) -> Option<Finding> {
        let idle = self.idle_ns(Cause::HostStarved);
        let text = format!(
            "the device waits {} a step while the host loads data or does work of its own",
            time(idle)
        );
        let evidence = self.stretches(Cause::HostStarved);
        self.finding(
            Code::HostStarved,
            idle,
            (idle / 4, idle / 4 * 3, idle),
            text,
            evidence,
        )
    }

    fn branches(&self) -> Option<Finding> {
        let trace = self.grounds.trace;
        let described = trace.devices.iter().find(|d| d.id == self.device.device)?;
        let sms = u64::from(described.sms?);
        // A kernel that has no block for every second multiprocessor leaves half of the device.
        let mut narrow_ns = 0;
        for (at, work) in trace.work.iter().enumerate() {
            // A graph says itself what is independent.
            let call = self.grounds.links.call_of(at);
            let in_graph =
                call.is_some_and(|call| trace.calls[call].api.kind == ApiKind::GraphLaunch);
            if let What::Kernel(kernel) = work.what
                && kernel.blocks > 0
                && !in_graph
                && 2 * u64::from(kernel.blocks) <= sms
            {
                narrow_ns = u64::saturating_add(narrow_ns, work.duration_ns);
            }
        }
        let several = self.device.streams.iter().filter(|s| s.busy_ns > 0).count() > 1;
        let narrow_ns = narrow_ns / self.steps;
        if several || narrow_ns < self.step_ns / 2 {
            return None;
        }
        let text = format!(
            "kernels that leave more than half of the device free take {} a step, all in one stream; \
             if some of them do not depend on each other, a second stream runs them at once",
            time(narrow_ns)
        );
        // Whether they depend on each other, no trace says.
        let share = narrow_ns as f64 / self.step_ns as f64;
        Some(Finding {
            code: Code::SerialBranches,
            text,
            share: share.min(1.0),
            saving_ns: Saving {
                low: 0,
                likely: 0,
                high: narrow_ns / 2,
            },
            evidence: Vec::new(),
        })
    }

    fn copy_bound(&self) -> Option<Finding> {
        let copy = |class: Class| self.device.overlap_ns[class as usize][class as usize];
        let longest = copy(Class::Upload).max(copy(Class::Download)) / self.steps;
        if longest / 9 < self.step_ns / 10 {
            return None;
        }
        let copies = self.host_copies(|_| true);
        let text = format!(
            "copies take {} of a step of {}: the bus is the floor, and only fewer bytes help",
            time(longest),
            time(self.step_ns)
        );
        self.finding(Code::CopyBound, longest, (0, 0, 0), text, copies.evidence)
    }

    fn communication(&self) -> Option<Finding> {
        let matrix = &self.device.overlap_ns;
        let all = matrix[Class::Collective as usize][Class::Collective as usize];
        let covered = matrix[Class::Collective as usize][Class::Compute as usize];
        let exposed = all.saturating_sub(covered) / self.steps;
        let text = format!(
            "communication takes {} a step in which nothing is computed",
            time(exposed)
        );
        self.finding(
            Code::ExposedCommunication,
            exposed,
            (0, exposed / 2, exposed),
            text,
            Vec::new(),
        )
    }

    /// Time that no step of a run without the profiler has.
    fn excluded(&self, cause: Cause, code: Code) -> Option<Finding> {
        let sum = self.idle.by_cause.get(&cause).copied().unwrap_or(0);
        let share = sum as f64 / self.device.span_ns.max(1) as f64;
        (share >= WORTH / 2.0).then(|| Finding {
            code,
            text: match code {
                Code::Startup => format!("{} outside of the steps are left out", time(sum)),
                _ => format!(
                    "{} of idle time are the profiler's and the driver's own",
                    time(sum)
                ),
            },
            share,
            saving_ns: Saving::default(),
            evidence: self.stretches(cause),
        })
    }
}

/// A sum over copies, by the step.
#[derive(Default)]
struct CopySum {
    duration_ns: u64,
    exposed_ns: u64,
    bytes: u64,
    evidence: Vec<Evidence>,
}

fn keep_longest(list: &mut Vec<&Work>) {
    list.sort_by_key(|work| (u64::MAX - work.duration_ns, work.start_ns));
    list.truncate(5);
}

fn host_memory(work: &Work) -> Memory {
    match work.what {
        What::Copy {
            direction: Direction::Upload,
            from,
            ..
        } => from,
        What::Copy {
            direction: Direction::Download,
            to,
            ..
        } => to,
        _ => Memory::Unknown,
    }
}

/// Whether the host waited for every launch, as it does under `CUDA_LAUNCH_BLOCKING=1`.
pub fn is_launch_blocking(trace: &Trace, links: &Links) -> bool {
    let (mut launches, mut waited) = (0, 0);
    for (at, work) in trace.work.iter().enumerate() {
        let Some(call) = links.call_of(at).map(|call| &trace.calls[call]) else {
            continue;
        };
        if call.api.kind == ApiKind::Launch {
            launches += 1;
            waited += usize::from(call.end_ns() >= work.end_ns());
        }
    }
    launches >= 10 && waited * 10 >= launches * 9
}

/// A time in the unit that people read easily.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// A size in the unit that people read easily.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
