//! Why a device did nothing: every nanosecond of its gaps, each with one cause.
//!
//! A gap ends with some work, and that work was asked for by some call. Up to the start of that call
//! the host was late; from there on the work was on its way. What the host's thread did meanwhile
//! says why it was late. The first of these that applies takes the time:
//!
//! 1. before the first step and after the last one: start-up,
//! 2. the profiler or the driver was busy with itself,
//! 3. the thread waited for its data loader,
//! 4. the thread had been held up when the gap began, or was held up inside it: until then it could
//!    not run ahead, so the whole delay up to the next work is that call's, provided that the thread
//!    would have had the time, which is so if it works for less long than the device does,
//! 5. the thread did nothing that the trace shows, for long: the program itself was slow,
//! 6. else it was on its way through framework and launches: launch-bound.
//!
//! Work that had been asked for before the gap began and still did not start waited for the device
//! itself, or for something that the trace does not show.

use std::collections::BTreeMap;

use crate::measure::{DeviceTime, Held, Links, Steps, StepsBy, WorkOfCalls, held};
use crate::model::{Direction, Memory, Name, RangeKind, Trace, What};

/// Why a device did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Before the first step, or after the last.
    Startup,
    /// The profiler or the driver was busy with itself.
    ProfilerOverhead,
    /// The program had nothing to submit: it waited for its data, or did other things.
    HostStarved,
    /// The host had been held up by a synchronisation.
    SyncInStep,
    /// The host had been held up by a copy.
    BlockingCopy,
    /// An upload from pageable memory was prepared by the host.
    PageableCopy,
    /// The host was on its way, and not fast enough.
    LaunchBound,
    /// The device passed from one work to the next.
    DeviceLatency,
    /// The trace does not show why.
    Unattributed,
}

impl Cause {
    /// The cause in the words of the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Startup => "STARTUP",
            Cause::ProfilerOverhead => "PROFILER_OVERHEAD",
            Cause::HostStarved => "HOST_STARVED",
            Cause::SyncInStep => "SYNC_IN_STEP",
            Cause::BlockingCopy => "BLOCKING_COPY",
            Cause::PageableCopy => "PAGEABLE_COPY",
            Cause::LaunchBound => "LAUNCH_BOUND",
            Cause::DeviceLatency => "DEVICE_LATENCY",
            Cause::Unattributed => "UNATTRIBUTED",
        }
    }
}

/// The idle time of a device, by cause.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    /// How much of it each cause has. The sum is the idle time.
    pub by_cause: BTreeMap<Cause, u64>,
    /// The longest stretches of each cause, the longest first.
    pub longest: BTreeMap<Cause, Vec<Stretch>>,
    /// All stretches, where they are asked for.
    all: Option<Vec<(Cause, Stretch)>>,
}

/// A stretch of idle time with one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// The call or the range that stands for it, if there is one.
    pub because: Option<Name>,
}

/// How many stretches of a cause are kept as evidence.
const EVIDENCE: usize = 5;
/// A device passes from one work to the next in some microseconds, with a wait between streams too.
const LATENCY_NS: u64 = 50_000;
/// A thread that shows nothing for so long does something of its own. Between two operators Python
/// takes tens of microseconds.
pub const OWN_NS: u64 = 500_000;

/// Everything that the causes are found with.
pub struct Scene<'t> {
    trace: &'t Trace,
    links: &'t Links,
    steps: &'t Steps,
    threads: Vec<Lane>,
    /// What the profiler and the driver did for themselves.
    overhead: Vec<(i64, i64, Name)>,
}

/// What one thread did, in order.
#[derive(Default)]
struct Lane {
    /// Calls and operators of the outermost level.
    active: Vec<(i64, i64)>,
    /// Waits for data.
    loading: Vec<(i64, i64, Name)>,
    /// Calls that held up the host.
    held: Vec<(i64, i64, Name, Held)>,
    /// How long those took.
    held_ns: u64,
}

impl<'t> Scene<'t> {
    /// Looks at each row of the host once.
    pub fn of(
        trace: &'t Trace,
        links: &'t Links,
        works: &'t WorkOfCalls,
        steps: &'t Steps,
    ) -> Scene<'t> {
        let mut threads: Vec<Lane> = Vec::new();
        threads.resize_with(trace.threads.len(), Lane::default);
        let mut overhead = Vec::new();
        let loads = |name: Name| is_loading(trace.names.text(name));
        let loading: Vec<bool> = (0..trace.names.len() as u32)
            .map(|n| loads(Name(n)))
            .collect();
        // Both lists are in order, and an outer range stands before its inner ones.
        let mut calls = trace.calls.iter().enumerate().peekable();
        let mut ranges = trace.ranges.iter().peekable();
        loop {
            let call_first = match (calls.peek(), ranges.peek()) {
                (Some((_, call)), Some(range)) => call.start_ns < range.start_ns,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            if call_first {
                let Some((at, call)) = calls.next() else {
                    break;
                };
                let lane = &mut threads[call.thread.0 as usize];
                lane.act(call.start_ns, call.end_ns());
                if let Some(held) = held(trace, at, works.first(at)) {
                    lane.held_ns = lane.held_ns.saturating_add(call.duration_ns);
                    lane.held
                        .push((call.start_ns, call.end_ns(), call.name, held));
                }
            } else {
                let Some(range) = ranges.next() else { break };
                let lane = &mut threads[range.thread.0 as usize];
                let (start, end) = (range.start_ns, range.end_ns());
                match range.kind {
                    RangeKind::Overhead => overhead.push((start, end, range.name)),
                    _ if loading[range.name.0 as usize] => lane.load(start, end, range.name),
                    RangeKind::Operator => lane.act(start, end),
                    RangeKind::Annotation | RangeKind::Step | RangeKind::Python => {}
                }
            }
        }
        Scene {
            trace,
            links,
            steps,
            threads,
            overhead,
        }
    }

    /// The causes of all idle time of a device.
    pub fn idle(&self, device: &DeviceTime) -> Idle {
        let mut idle = Idle::default();
        self.gaps(device, device.busy.gaps(), &mut idle);
        for list in idle.longest.values_mut() {
            list.sort_by_key(|stretch| (u64::MAX - stretch.duration_ns, stretch.start_ns));
        }
        idle
    }

    /// The stretches of idle time of a device that begin in this stretch of time, with their causes,
    /// in their order.
    pub fn stretches(
        &self,
        device: &DeviceTime,
        (start, end): (i64, i64),
    ) -> Vec<(Cause, Stretch)> {
        let mut idle = Idle {
            all: Some(Vec::new()),
            ..Idle::default()
        };
        let gaps = device
            .busy
            .gaps()
            .filter(|gap| start <= gap.0 && gap.0 < end);
        self.gaps(device, gaps, &mut idle);
        let mut all = idle.all.unwrap_or_default();
        all.sort_by_key(|(_, stretch)| stretch.start_ns);
        all
    }

    fn gaps(&self, device: &DeviceTime, gaps: impl Iterator<Item = (i64, i64)>, idle: &mut Idle) {
        // The work of the device that ends each gap.
        let mut work = self.trace.work.iter().enumerate().filter(|(_, work)| {
            let stream = &self.trace.streams[work.stream.0 as usize];
            (stream.process, stream.device) == (device.process, device.device)
        });
        for (start, end) in gaps {
            let next = work.find(|(_, work)| work.start_ns >= end);
            self.gap(device, (start, end), next.map(|(at, _)| at), idle);
        }
    }

    /// Divides a gap among its causes.
    fn gap(
        &self,
        device: &DeviceTime,
        (start, end): (i64, i64),
        next: Option<usize>,
        idle: &mut Idle,
    ) {
        let mut rest = Pieces::new(start, end);
        if let (false, Some(first), Some(last)) = (
            matches!(self.steps.by, StepsBy::Nothing | StepsBy::Repetition),
            self.steps.steps.first(),
            self.steps.steps.last(),
        ) {
            self.take(
                &mut rest,
                (i64::MIN, first.start_ns, None),
                Cause::Startup,
                idle,
            );
            let after = last.end_ns.max(last.last_gpu_ns);
            self.take(&mut rest, (after, i64::MAX, None), Cause::Startup, idle);
        }
        for (from, to, name) in overlapping(&self.overhead, start, end) {
            let stretch = (*from, *to, Some(*name));
            self.take(&mut rest, stretch, Cause::ProfilerOverhead, idle);
        }
        let call = next.and_then(|at| Some((at, self.links.call_of(at)?)));
        let Some((work, call)) = call else {
            let short = end.abs_diff(start) <= LATENCY_NS;
            let cause = match short {
                true => Cause::DeviceLatency,
                false => Cause::Unattributed,
            };
            return self.take(&mut rest, (start, end, None), cause, idle);
        };
        let (asked, back) = {
            let call = &self.trace.calls[call];
            (call.start_ns, call.end_ns())
        };
        let name = Some(self.trace.calls[call].name);
        if asked <= start {
            // It had been asked for already.
            let on_its_way = back > start;
            let cause = match () {
                () if on_its_way && self.is_pageable_upload(work) => Cause::PageableCopy,
                () if on_its_way => Cause::LaunchBound,
                () if end.abs_diff(start) <= LATENCY_NS => Cause::DeviceLatency,
                () => Cause::Unattributed,
            };
            return self.take(&mut rest, (start, end, name), cause, idle);
        }
        let thread = self.trace.calls[call].thread;
        let lane = &self.threads[thread.0 as usize];
        let late = asked.min(end);
        for (from, to, name) in overlapping(&lane.loading, start, late) {
            let stretch = ((*from).max(start), (*to).min(late), Some(*name));
            self.take(&mut rest, stretch, Cause::HostStarved, idle);
        }
        let held = lane.held_before(start, late);
        let could_run_ahead = held.is_some() && lane.own_ns(device) < device.busy_ns();
        if !could_run_ahead {
            for (from, to) in lane.quiet(start, late) {
                self.take(&mut rest, (from, to, None), Cause::HostStarved, idle);
            }
        }
        if self.is_pageable_upload(work) {
            self.take(&mut rest, (late, end, name), Cause::PageableCopy, idle);
        }
        let (cause, because) = match held {
            Some((name, Held::Sync)) => (Cause::SyncInStep, Some(name)),
            Some((name, Held::Copy)) => (Cause::BlockingCopy, Some(name)),
            None => (Cause::LaunchBound, name),
        };
        self.take(&mut rest, (start, end, because), cause, idle);
    }

    /// Gives what is left of a stretch to a cause.
    fn take(
        &self,
        rest: &mut Pieces,
        (from, to, because): (i64, i64, Option<Name>),
        cause: Cause,
        idle: &mut Idle,
    ) {
        for (start_ns, end_ns) in rest.take(from, to) {
            let duration_ns = end_ns.abs_diff(start_ns);
            *idle.by_cause.entry(cause).or_default() += duration_ns;
            let longest = idle.longest.entry(cause).or_default();
            let stretch = Stretch {
                start_ns,
                duration_ns,
                because,
            };
            if let Some(all) = &mut idle.all {
                all.push((cause, stretch));
            }
            if longest.len() < EVIDENCE {
                longest.push(stretch);
            } else if let Some(least) = longest.iter_mut().min_by_key(|s| s.duration_ns)
                && least.duration_ns < duration_ns
            {
                *least = stretch;
            }
        }
    }

    fn is_pageable_upload(&self, work: usize) -> bool {
        matches!(
            self.trace.work[work].what,
            What::Copy {
                direction: Direction::Upload,
                from: Memory::Pageable,
                ..
            }
        )
    }
}

impl Lane {
    fn act(&mut self, start: i64, end: i64) {
        match self.active.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.active.push((start, end)),
        }
    }

    fn load(&mut self, start: i64, end: i64, name: Name) {
        // One inside the other counts once.
        if self.loading.last().is_none_or(|last| last.1 <= start) {
            self.loading.push((start, end, name));
        }
    }

    /// Long stretches without any call or operator.
    fn quiet(&self, start: i64, end: i64) -> Vec<(i64, i64)> {
        let first = self.active.partition_point(|span| span.1 <= start);
        let mut from = start;
        let mut quiet = Vec::new();
        let mut note = |from: i64, to: i64| {
            if to > from && to.abs_diff(from) >= OWN_NS {
                quiet.push((from, to));
            }
        };
        for span in self.active[first..].iter().take_while(|s| s.0 < end) {
            note(from, span.0);
            from = from.max(span.1);
        }
        note(from, end);
        quiet
    }

    /// Of the calls that held up the thread while the gap began or inside it, the longest.
    fn held_before(&self, start: i64, late: i64) -> Option<(Name, Held)> {
        // A wait that ended just before was over when the device was: the host needs a moment to
        // notice.
        let noticed = start.saturating_sub(LATENCY_NS as i64);
        let first = self.held.partition_point(|held| held.0 < late);
        let recent = self.held[..first].iter().rev();
        let recent = recent.take_while(|held| held.1 > noticed);
        let longest = recent.max_by_key(|held| held.1.abs_diff(held.0))?;
        Some((longest.2, longest.3))
    }

    /// How long the thread was not held up while the device was in use.
    fn own_ns(&self, device: &DeviceTime) -> u64 {
        device.span_ns.saturating_sub(self.held_ns)
    }
}

/// What is left of a gap.
struct Pieces {
    pieces: Vec<(i64, i64)>,
}

impl Pieces {
    fn new(start: i64, end: i64) -> Pieces {
        Pieces {
            pieces: vec![(start, end)],
        }
    }

    /// Takes out what lies in a stretch.
    fn take(&mut self, from: i64, to: i64) -> Vec<(i64, i64)> {
        let mut taken = Vec::new();
        let mut left = Vec::new();
        for (start, end) in self.pieces.drain(..) {
            let (a, b) = (start.max(from), end.min(to));
            if a >= b {
                left.push((start, end));
                continue;
            }
            taken.push((a, b));
            left.extend([(start, a), (b, end)].into_iter().filter(|p| p.0 < p.1));
        }
        self.pieces = left;
        taken
    }
}

/// The stretches of an ordered list that overlap another. They may lie in each other.
fn overlapping(
    list: &[(i64, i64, Name)],
    start: i64,
    end: i64,
) -> impl Iterator<Item = &(i64, i64, Name)> {
    let after = list.partition_point(|stretch| stretch.0 < end);
    list[..after]
        .iter()
        .rev()
        .take(64)
        .filter(move |stretch| stretch.1 > start)
}

/// Names of ranges in which a program waits for its data.
pub fn is_loading(name: &str) -> bool {
    name.contains("DataLoader") || name.contains("dataloader") || name.contains("data_loader")
}
