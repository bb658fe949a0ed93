//! Why a device did nothing: every nanosecond of its gaps, each with one cause.
//!
//! A gap ends with some work, and that work was asked for by some call. Up to the start of that call
//! the host was late; from there on the work was on its way. What the host's thread did meanwhile
//! says why it was late. The first of these that applies takes the time:
//!
//! 1. before the first step and after the last one: start-up,
//! 2. the profiler or the driver was busy with itself, or the profiler passed from one step to the next,
//! 3. the thread waited for its data loader,
//! 4. the thread had been held up when the gap began, or was held up inside it: until then it could
//!    not run ahead, so the whole delay up to the next work is that call's, provided that the thread
//!    would have had the time, which is so if it works for less long than the device does; else only
//!    the time inside the call is,
//! 5. the thread did nothing that the trace shows, for long: the program itself was slow,
//! 6. else it was on its way through framework and launches: launch-bound.
//!
//! Work that had been asked for before the gap began and still did not start waited for the device
//! itself, or for something that the trace does not show.

use std::collections::{BTreeMap, HashMap};

use crate::measure::{DeviceTime, Held, Links, Spans, Steps, StepsBy, WorkOfCalls, held, quantile};
use crate::model::{ApiKind, Call, Direction, Memory, Name, RangeKind, Trace, What, Work};

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
    /// All of them.
    pub const ALL: [Cause; 9] = [
        Cause::Startup,
        Cause::ProfilerOverhead,
        Cause::HostStarved,
        Cause::SyncInStep,
        Cause::BlockingCopy,
        Cause::PageableCopy,
        Cause::LaunchBound,
        Cause::DeviceLatency,
        Cause::Unattributed,
    ];

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
    /// How much of that lies in steps of a usual length.
    pub in_steps: BTreeMap<Cause, u64>,
    /// The same by what stands for it, with how many stretches that is.
    pub reasons: BTreeMap<(Cause, Because), (usize, u64)>,
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
    pub because: Option<Because>,
}

/// A call or a range that stands for idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Because {
    /// Its name.
    pub name: Name,
    /// The operators that it was made in.
    pub inside: Inside,
}

/// The innermost operators around a call, the outer ones first; without any, the annotation around it.
pub type Inside = [Option<Name>; 3];

/// How many stretches of a cause are kept as evidence.
const EVIDENCE: usize = 5;
/// A device passes from one work to the next in some microseconds, with a wait between streams too.
const LATENCY_NS: u64 = 50_000;
/// A thread that shows nothing for so long does something of its own. Between two operators Python
/// takes tens of microseconds.
pub const OWN_NS: u64 = 500_000;
/// A launch takes some microseconds. One that takes so long waits for room in the queue.
const STALLED_NS: u64 = 100_000;

/// Everything that the causes are found with.
pub struct Scene<'t> {
    trace: &'t Trace,
    links: &'t Links,
    steps: &'t Steps,
    threads: Vec<Lane>,
    /// What the profiler and the driver did for themselves, in order and apart.
    overhead: Vec<Named>,
    /// When any thread was held up.
    held: Spans,
    /// The operators around the calls that held up the host or copied.
    inside: HashMap<u32, Inside>,
}

/// A stretch with a name.
type Named = (i64, i64, Because);

/// What one thread did, in order.
#[derive(Default)]
struct Lane {
    /// Calls and operators of the outermost level.
    active: Vec<(i64, i64)>,
    /// Waits for data, apart.
    loading: Vec<Named>,
    /// Calls that held up the host, apart.
    held: Vec<(Named, Held)>,
    /// How long those took.
    held_ns: u64,
    /// Ranges that may be open, with whether they are operators.
    open: Vec<(i64, Name, bool)>,
    /// The last call, if it copied from or to memory of the host: whether that is pageable.
    copied: Option<Memory>,
    /// When the last step of the profiler was over.
    step_over_ns: Option<i64>,
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
        let mut scene = Scene {
            trace,
            links,
            steps,
            threads,
            overhead: Vec::new(),
            held: Spans::default(),
            inside: HashMap::new(),
        };
        let mut overhead = Vec::new();
        let loads = |name: Name| is_loading(trace.names.text(name));
        let loading: Vec<bool> = (0..trace.names.len() as u32)
            .map(|n| loads(Name(n)))
            .collect();
        let copies: Vec<bool> = (0..trace.names.len() as u32)
            .map(|n| trace.names.text(Name(n)) == "aten::copy_")
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
                scene.call(at, call, works.first(at), &copies);
            } else {
                let Some(range) = ranges.next() else { break };
                let lane = &mut scene.threads[range.thread.0 as usize];
                let (start, end) = (range.start_ns, range.end_ns());
                let named = (start, end, Because::of(range.name));
                match range.kind {
                    RangeKind::Overhead => overhead.push(named),
                    RangeKind::Step => {
                        // The profiler ends one step and begins the next in one call.
                        let before = lane.step_over_ns.replace(end);
                        if let Some(over) = before
                            && over < start
                            && start.abs_diff(over) < OWN_NS
                        {
                            overhead.push((over, start, named.2));
                        }
                    }
                    _ if loading[range.name.0 as usize] => apart(&mut lane.loading, named),
                    RangeKind::Operator => {
                        lane.act(start, end);
                        lane.enter(start, (end, range.name, true));
                    }
                    RangeKind::Annotation => lane.enter(start, (end, range.name, false)),
                    RangeKind::Python => {}
                }
            }
        }
        overhead.sort_by_key(|named| named.0);
        for named in overhead {
            apart(&mut scene.overhead, named);
        }
        scene
    }

    fn call(&mut self, at: usize, call: &Call, work: Option<usize>, copies: &[bool]) {
        let (start, end) = (call.start_ns, call.end_ns());
        let lane = &mut self.threads[call.thread.0 as usize];
        lane.act(start, end);
        let copy = work.and_then(|at| host_memory(&self.trace.work[at]));
        let after = std::mem::replace(&mut lane.copied, copy);
        let held = held(self.trace, at, work);
        if held.is_none() && copy.is_none() {
            let stalled = call.api.kind.submits() && call.duration_ns > STALLED_NS;
            if stalled {
                self.held.push(start, end);
            }
            return;
        }
        let inside = lane.inside(start);
        self.inside.insert(at as u32, inside);
        let Some(mut held) = held else { return };
        // A framework waits for a copy of its own by a synchronisation of its stream.
        if let (ApiKind::SyncStream, Some(memory)) = (call.api.kind, after) {
            let innermost = inside.iter().flatten().last();
            let copies = innermost.is_some_and(|name| copies[name.0 as usize]);
            if copies || memory == Memory::Pageable {
                held = Held::Copy;
            }
        }
        self.held.push(start, end);
        let because = Because {
            name: call.name,
            inside,
        };
        if lane.held.last().is_none_or(|last| last.0.1 <= start) {
            lane.held_ns = lane.held_ns.saturating_add(call.duration_ns);
            lane.held.push(((start, end, because), held));
        }
    }

    /// The operators around a call that held up the host or copied.
    pub fn inside(&self, call: usize) -> Inside {
        let call = u32::try_from(call).ok();
        let inside = call.and_then(|call| self.inside.get(&call));
        inside.copied().unwrap_or_default()
    }

    /// How long the host works on a step, in the median, without the time in which it is held up. A
    /// host that runs ahead is done early. The last step has no next one and does not count.
    pub fn host_ns(&self) -> u64 {
        if self.trace.calls.is_empty() {
            return 0;
        }
        let own_ns = |pair: &[crate::measure::Step]| {
            let (start, end) = (pair[0].start_ns, pair[1].start_ns);
            let held_ns = self.held.within_ns(start, end);
            (end.saturating_sub(start).max(0) as u64).saturating_sub(held_ns)
        };
        let own: Vec<u64> = self.steps.steps.windows(2).map(own_ns).collect();
        quantile(&own, 1, 2).unwrap_or(0)
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
        let (usual, _) = self.steps.usual(device);
        // The work of the device that ends each gap.
        let mut work = self.trace.work.iter().enumerate().filter(|(_, work)| {
            let stream = &self.trace.streams[work.stream.0 as usize];
            (stream.process, stream.device) == (device.process, device.device)
        });
        for gap in gaps {
            let next = work.find(|(_, work)| work.start_ns >= gap.1);
            let mut rest = Rest {
                pieces: vec![gap],
                idle: &mut *idle,
                usual: &usual,
            };
            self.gap(device, gap, next.map(|(at, _)| at), &mut rest);
        }
    }

    /// Divides a gap among its causes.
    fn gap(
        &self,
        device: &DeviceTime,
        (start, end): (i64, i64),
        next: Option<usize>,
        rest: &mut Rest,
    ) {
        if let (false, Some(first), Some(last)) = (
            matches!(self.steps.by, StepsBy::Nothing | StepsBy::Repetition),
            self.steps.steps.first(),
            self.steps.steps.last(),
        ) {
            rest.take((i64::MIN, first.start_ns), None, Cause::Startup);
            let after = last.end_ns.max(last.last_gpu_ns);
            rest.take((after, i64::MAX), None, Cause::Startup);
        }
        for (from, to, because) in overlapping(&self.overhead, start, end) {
            rest.take((*from, *to), Some(*because), Cause::ProfilerOverhead);
        }
        let call = next.and_then(|at| Some((at, self.links.call_of(at)?)));
        let Some((work, call)) = call else {
            let short = end.abs_diff(start) <= LATENCY_NS;
            let cause = match short {
                true => Cause::DeviceLatency,
                false => Cause::Unattributed,
            };
            return rest.take((start, end), None, cause);
        };
        let upload = self.is_pageable_upload(work);
        let inside = self.inside(call);
        let call = &self.trace.calls[call];
        let (asked, back) = (call.start_ns, call.end_ns());
        let name = Some(Because {
            name: call.name,
            inside,
        });
        if asked <= start {
            // It had been asked for already.
            let on_its_way = back > start;
            let cause = match () {
                () if on_its_way && upload => Cause::PageableCopy,
                () if on_its_way => Cause::LaunchBound,
                () if end.abs_diff(start) <= LATENCY_NS => Cause::DeviceLatency,
                () => Cause::Unattributed,
            };
            return rest.take((start, end), name, cause);
        }
        let lane = &self.threads[call.thread.0 as usize];
        let late = asked.min(end);
        for (from, to, because) in overlapping(&lane.loading, start, late) {
            let stretch = ((*from).max(start), (*to).min(late));
            rest.take(stretch, Some(*because), Cause::HostStarved);
        }
        let held = lane.held_before(start, late);
        let could_run_ahead = lane.own_ns(device) < device.busy_ns();
        if held.is_none() || !could_run_ahead {
            for stretch in lane.quiet(start, late) {
                rest.take(stretch, None, Cause::HostStarved);
            }
        }
        if upload {
            rest.take((late, end), name, Cause::PageableCopy);
        }
        if let Some(((from, to, because), held)) = held {
            let cause = match held {
                Held::Sync => Cause::SyncInStep,
                Held::Copy => Cause::BlockingCopy,
            };
            // A host that is slower than the device would be late without the call too.
            let stretch = match could_run_ahead {
                true => (start, end),
                false => (from, to),
            };
            rest.take(stretch, Some(because), cause);
        }
        rest.take((start, end), name, Cause::LaunchBound);
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

impl Because {
    fn of(name: Name) -> Because {
        Because {
            name,
            inside: Inside::default(),
        }
    }
}

/// The host's memory of a copy between host and device.
pub fn host_memory(work: &Work) -> Option<Memory> {
    match work.what {
        What::Copy {
            direction: Direction::Upload,
            from,
            ..
        } => Some(from),
        What::Copy {
            direction: Direction::Download,
            to,
            ..
        } => Some(to),
        _ => None,
    }
}

impl Lane {
    fn act(&mut self, start: i64, end: i64) {
        match self.active.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.active.push((start, end)),
        }
    }

    /// A range begins: those that are over are open no more.
    fn enter(&mut self, start: i64, range: (i64, Name, bool)) {
        while self.open.pop_if(|open| open.0 <= start).is_some() {}
        self.open.push(range);
    }

    /// What is open at a moment.
    fn inside(&mut self, start: i64) -> Inside {
        while self.open.pop_if(|open| open.0 <= start).is_some() {}
        let mut inside = Inside::default();
        // Files may hold ranges that do not nest; the innermost are near the end all the same.
        let open = self.open.iter().rev().take(64);
        let open = open.filter(|open| open.0 > start);
        let operators = open.clone().filter(|open| open.2).map(|open| open.1);
        for (place, name) in inside.iter_mut().rev().zip(operators) {
            *place = Some(name);
        }
        if inside[2].is_none() {
            inside[2] = open.map(|open| open.1).next();
        }
        inside
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
    fn held_before(&self, start: i64, late: i64) -> Option<(Named, Held)> {
        // A wait that ended just before was over when the device was: the host needs a moment to
        // notice.
        let noticed = start.saturating_sub(LATENCY_NS as i64);
        let first = self.held.partition_point(|(held, _)| held.0 < late);
        let recent = self.held[..first].iter().rev();
        let recent = recent.take_while(|(held, _)| held.1 > noticed);
        recent
            .max_by_key(|(held, _)| held.1.abs_diff(held.0))
            .copied()
    }

    /// How long the thread was not held up while the device was in use.
    fn own_ns(&self, device: &DeviceTime) -> u64 {
        device.span_ns.saturating_sub(self.held_ns)
    }
}

/// What is left of a gap.
struct Rest<'a> {
    pieces: Vec<(i64, i64)>,
    idle: &'a mut Idle,
    usual: &'a Spans,
}

impl Rest<'_> {
    /// Gives what is left of a stretch to a cause.
    fn take(&mut self, (from, to): (i64, i64), because: Option<Because>, cause: Cause) {
        let pieces = std::mem::take(&mut self.pieces);
        for (start, end) in pieces {
            let (a, b) = (start.max(from), end.min(to));
            if a >= b {
                self.pieces.push((start, end));
                continue;
            }
            let left = [(start, a), (b, end)].into_iter().filter(|p| p.0 < p.1);
            self.pieces.extend(left);
            self.note((a, b), because, cause);
        }
    }

    fn note(&mut self, (start_ns, end_ns): (i64, i64), because: Option<Because>, cause: Cause) {
        let duration_ns = end_ns.abs_diff(start_ns);
        let idle = &mut *self.idle;
        *idle.by_cause.entry(cause).or_default() += duration_ns;
        if let Some(all) = &mut idle.all {
            let stretch = Stretch {
                start_ns,
                duration_ns,
                because,
            };
            all.push((cause, stretch));
        }
        let in_steps_ns = self.usual.within_ns(start_ns, end_ns);
        *idle.in_steps.entry(cause).or_default() += in_steps_ns;
        if let (Some(because), true) = (because, in_steps_ns > 0) {
            let sum = idle.reasons.entry((cause, because)).or_default();
            sum.0 += 1;
            sum.1 += in_steps_ns;
        }
        let is_outside = matches!(cause, Cause::Startup | Cause::ProfilerOverhead);
        if in_steps_ns == 0 && !is_outside {
            return;
        }
        let longest = idle.longest.entry(cause).or_default();
        let stretch = Stretch {
            start_ns,
            duration_ns,
            because,
        };
        if longest.len() < EVIDENCE {
            longest.push(stretch);
        } else if let Some(least) = longest.iter_mut().min_by_key(|s| s.duration_ns)
            && least.duration_ns < duration_ns
        {
            *least = stretch;
        }
    }
}

/// Adds a stretch to an ordered list, as far as it lies behind all of those before it: of two that
/// lie in each other the outer one stays.
fn apart(list: &mut Vec<Named>, (start, end, because): Named) {
    let start = list.last().map_or(start, |last| start.max(last.1));
    if start < end {
        list.push((start, end, because));
    }
}

/// The stretches of an ordered list, apart from each other, that overlap another one.
fn overlapping(list: &[Named], start: i64, end: i64) -> impl Iterator<Item = &Named> {
    let first = list.partition_point(|stretch| stretch.1 <= start);
    list[first..]
        .iter()
        .take_while(move |stretch| stretch.0 < end)
}

/// Whether workers of PyTorch's data loader load what a program waits for.
pub fn has_workers(trace: &Trace) -> bool {
    let mut names = (0..trace.names.len() as u32).map(|at| trace.names.text(Name(at)));
    names.any(|name| is_loading(name) && name.contains("MultiProcessing"))
}

/// Names of ranges in which a program waits for its data.
pub fn is_loading(name: &str) -> bool {
    name.contains("DataLoader") || name.contains("dataloader") || name.contains("data_loader")
}
