//! Why a device was idle: every nanosecond of its gaps, each with one cause.
//!
//! A gap ends with some work, and that work was submitted by some call. Up to the start of that call the host was late; from
//! there on the launch was on its way to the device. The reason why the host was late follows from what its thread did
//! meanwhile. The first of these that applies takes the time:
//!
//! 1. before the first step and after the last one: start-up,
//! 2. the profiler or the driver was busy with its own work, or the profiler passed from one step to the next,
//! 3. the thread did one-time work: it loaded code, captured a graph, allocated memory for the first time,
//! 4. the launch had returned and the work did not begin: it waited for an event or a host function, if its thread had placed
//!    such a wait before it; if not, the trace does not show why,
//! 5. the thread waited for its data loader,
//! 6. the thread made no call for half a millisecond or more, where it would have been late anyway: the host's own work, by the
//!    name of the innermost range or operator around it,
//! 7. the thread was blocked when the gap began, or during it: until then it could not run ahead, so the whole delay up to the
//!    next work is attributed to that call, provided that the thread would have had the time, which is so if it works for less
//!    time than the device does; otherwise only the time inside the call is,
//! 8. otherwise it was busy in the framework and in launches: launch-bound.
//!
//! The rule of number 4 also applies to work that had been submitted before the gap began and did not start for 50 µs: the
//! whole device was idle, so it did not wait for work in its own streams. A gap whose work has no call in the trace has no
//! cause, and neither has any gap in a trace that is only a sample.

mod lane;
mod own;
mod regions;
mod rest;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use lane::{Lane, Named, Own, apart, overlapping, within_ns};
use regions::{Regions, Sections};
use rest::Rest;

pub use regions::Region;

use crate::initial::Initial;
use crate::measure::{DeviceTime, Held, Links, Spans, Steps, StepsBy, WorkOfCalls, held, sampled};
use crate::model::{
    ApiKind, Call, Direction, Memory, Name, Range, RangeKind, Stream, StreamIndex, SyncKind,
    ThreadIndex, Trace,
};
use crate::sections::Section;
use crate::sort::order_by;
use crate::words::words;

words! {
    /// Why a device was idle.
    pub enum Cause {
        /// Before the first step, or after the last.
        Startup = "STARTUP",
        /// The profiler or the driver was busy with its own work.
        ProfilerOverhead = "PROFILER_OVERHEAD",
        /// The program did one-time work: it loaded code, captured a graph, allocated memory.
        Initialisation = "INITIALISATION",
        /// The program waited for its data loader.
        HostStarved = "HOST_STARVED",
        /// The host did its own work, or nothing that the trace shows.
        HostWork = "HOST_WORK",
        /// The host had been blocked by a synchronisation.
        SyncInStep = "SYNC_IN_STEP",
        /// The host had been blocked by a copy.
        BlockingCopy = "BLOCKING_COPY",
        /// The host was preparing an upload from pageable memory.
        PageableCopy = "PAGEABLE_COPY",
        /// The host was busy with launches, and not fast enough.
        LaunchBound = "LAUNCH_BOUND",
        /// The work had been submitted, and waited for an event or a host function.
        StreamWait = "STREAM_WAIT",
        /// The device switched from one operation to the next.
        DeviceLatency = "DEVICE_LATENCY",
        /// The trace does not show why.
        Unattributed = "UNATTRIBUTED",
    }
}

impl Cause {
    /// Returns what the host did meanwhile, and the class of the cause in the page's style sheet.
    pub fn told(self) -> (&'static str, usize) {
        match self {
            Cause::Startup => ("before the first step, or after the last", 0),
            Cause::ProfilerOverhead => ("the profiler or the driver was busy with its own work", 1),
            Cause::Initialisation => ("the program did one-time work", 9),
            Cause::HostStarved => ("the host waited for data", 2),
            Cause::HostWork => (
                "the host did its own work, or nothing that the trace shows",
                10,
            ),
            Cause::SyncInStep => ("a synchronisation had blocked the host", 3),
            Cause::BlockingCopy => ("a copy had blocked the host", 4),
            Cause::PageableCopy => ("the host prepared an upload from pageable memory", 5),
            Cause::LaunchBound => ("the host was busy in the framework and in launches", 6),
            Cause::StreamWait => ("submitted work waited for an event or a host function", 11),
            Cause::DeviceLatency => ("the device switched from one operation to the next", 7),
            Cause::Unattributed => ("the trace does not show why", 8),
        }
    }
}

/// The idle time of a device, by cause.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    /// Idle time of each cause, in nanoseconds. The sum is the idle time.
    pub by_cause: BTreeMap<Cause, u64>,
    /// The part of this idle time that lies within the steps; all of it if there are no steps.
    pub in_steps: BTreeMap<Cause, u64>,
    /// Idle time by cause and by the call or range that caused it, with the number of spans.
    pub reasons: BTreeMap<(Cause, Because), (usize, u64)>,
    /// The longest spans of each cause, the longest first.
    pub longest: BTreeMap<Cause, Vec<Stretch>>,
    /// The longest span of each cause, inside or outside the steps.
    pub longest_of_all: BTreeMap<Cause, Stretch>,
    /// All spans, if the caller asks for them.
    all: Option<Vec<(Cause, Stretch)>>,
}

/// A span of idle time with one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Start of the span.
    pub start_ns: i64,
    /// Length of the span.
    pub duration_ns: u64,
    /// The call or range that caused it, if there is one.
    pub because: Option<Because>,
}

/// A call or range that caused idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Because {
    /// Its name.
    pub name: Name,
    /// The operators in which it was made.
    pub inside: Inside,
}

/// The innermost operators around a call, the outer ones first; if there are none, the annotation around it.
pub type Inside = [Option<Name>; 3];

/// The prefix of PyTorch's names for operators of the backward pass.
const BACKWARD: &str = "autograd::engine::evaluate_function";
/// A device switches from one operation to the next within some microseconds, even with a wait between streams.
const LATENCY_NS: u64 = 50_000;
/// A thread that shows no activity for this long does its own work. Between two operators Python takes tens of microseconds.
pub const OWN_NS: u64 = 500_000;

/// All data from which the causes are found.
pub struct Scene<'t> {
    trace: &'t Trace,
    links: &'t Links,
    steps: &'t Steps,
    works: &'t WorkOfCalls,
    initial: Initial,
    /// Whether most calls and most work are missing from the trace.
    is_sample: bool,
    /// The streams of waits for events, by the correlation numbers of their calls, where the trace has them.
    waiting: HashMap<u32, StreamIndex>,
    /// The work of each device, where there are several.
    of_device: HashMap<(Option<i64>, i64), Vec<u32>>,
    threads: Vec<Lane>,
    /// The profiler's and the driver's own work, in order and disjoint.
    overhead: Vec<Named>,
    /// The operators around the calls that blocked the host or copied.
    inside: HashMap<u32, Inside>,
    /// The part of the step of each name, and the ranges in which work is launched.
    sections: Sections,
    regions: Regions,
}

impl<'t> Scene<'t> {
    /// Builds the scene in one pass over the host rows.
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
            works,
            initial: Initial::of(trace, steps),
            is_sample: sampled(trace).is_some(),
            waiting: waiting(trace),
            of_device: by_device(trace),
            threads,
            overhead: Vec::new(),
            inside: HashMap::new(),
            sections: Sections::of_names(&trace.names),
            regions: Regions::default(),
        };
        let mut overhead = Vec::new();
        let loading = trace.names.that(is_loading);
        let copies = trace.names.that(|name| name == "aten::copy_");
        // Both lists are in order, and an outer range comes before its inner ones.
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
                        if scene.initial.is_operator(range) && !is_wait(trace, works, range) {
                            apart(&mut lane.initial, named);
                        }
                        let part = scene.sections.of(range.name);
                        if part == Some(Section::SetUp) {
                            apart(&mut lane.initial, named);
                        }
                        lane.is_backward |= part == Some(Section::Backward)
                            && trace.names.text(range.name).starts_with(BACKWARD);
                        lane.notice(range, part);
                        lane.enter(start, (end, range.name, true));
                    }
                    RangeKind::Annotation => {
                        let part = scene.sections.of(range.name);
                        if part == Some(Section::SetUp) {
                            apart(&mut lane.initial, named);
                        }
                        lane.notice(range, part);
                        lane.enter(start, (end, range.name, false));
                    }
                    RangeKind::System => lane.call_system(range),
                    RangeKind::Python => {}
                }
            }
        }
        order_by(&mut overhead, |named| named.0);
        for named in overhead {
            apart(&mut scene.overhead, named);
        }
        own::without_each_other(&mut scene.threads, &trace.threads);
        own::once(&mut scene.threads, &scene.initial);
        scene
    }

    fn call(&mut self, at: usize, call: &Call, work: Option<usize>, copies: &[bool]) {
        let (start, end) = (call.start_ns, call.end_ns());
        let lane = &mut self.threads[call.thread.0 as usize];
        let name = self.trace.names.text(call.name);
        let is_initial = self.initial.is_call(call, name);
        lane.act((start, end), is_initial && call.api.kind == ApiKind::Module);
        if call.api.kind.submits() {
            self.regions.note(at, start, lane, &self.sections);
        }
        match call.api.kind {
            ApiKind::Launch => self.regions.count(at, false, lane.is_capturing),
            ApiKind::GraphLaunch => self.regions.count(at, true, false),
            _ if name.contains("BeginCapture") => lane.is_capturing = true,
            _ if name.contains("EndCapture") => lane.is_capturing = false,
            _ => {}
        }
        let because = Because::of(call.name);
        match name {
            name if name.contains("BeginCapture") && self.initial.captures_once(call) => {
                lane.captures = Some((start, because));
            }
            name if name.contains("EndCapture") => {
                if let Some((begun, because)) = lane.captures.take() {
                    apart(&mut lane.initial, (begun, end, because));
                }
            }
            _ => {}
        }
        if is_initial && !waited(self.trace, at, work) {
            apart(&mut lane.initial, (start, end, because));
            lane.copied = None;
            return;
        }
        let copy = work.and_then(|at| self.trace.work[at].host_memory());
        let after = std::mem::replace(&mut lane.copied, copy);
        let held = held(self.trace, at, work);
        if held.is_none() && copy.is_none() {
            return;
        }
        let inside = lane.inside(start);
        self.inside.insert(at as u32, inside);
        let Some(mut held) = held else { return };
        // A framework waits for its own copy by a synchronisation of the copy's stream.
        if let (ApiKind::SyncStream, Some(memory)) = (call.api.kind, after) {
            let innermost = inside.iter().flatten().last();
            let copies = innermost.is_some_and(|name| copies[name.0 as usize]);
            if copies || memory == Memory::Pageable {
                held = Held::Copy;
            }
        }
        let because = Because {
            name: call.name,
            inside,
        };
        if lane.held.last().is_none_or(|last| last.0.1 <= start) {
            lane.held_ns = lane.held_ns.saturating_add(call.duration_ns);
            lane.held.push(((start, end, because), held));
        }
    }

    /// Returns whether another thread or process could do this part of the host's own work.
    pub fn is_movable(&self, own: Option<Because>) -> bool {
        let names = own.into_iter().flat_map(|own| {
            let inside = own.inside.into_iter().flatten();
            inside.chain([own.name])
        });
        let mut parts = names.filter_map(|name| self.sections.of(name));
        parts.all(Section::is_movable)
    }

    /// Returns whether many launches are made while a graph is captured.
    pub fn captures(&self) -> bool {
        self.regions.are_captured()
    }

    /// Returns whether a graph would gain nothing, since launches are already batched: most are graph launches or in compiled
    /// code, or made to capture a graph.
    pub fn submits_at_once(&self) -> bool {
        self.regions.are_at_once() || self.captures()
    }

    /// Returns the ranges in which work is launched.
    pub fn regions(&self) -> &[Region] {
        &self.regions.all
    }

    /// Returns the index of a call's range in [`Scene::regions`].
    pub fn region_of(&self, call: usize) -> Option<usize> {
        self.regions.of(call)
    }

    /// Returns the operators around a call that blocked the host or copied.
    pub fn inside(&self, call: usize) -> Inside {
        let call = u32::try_from(call).ok();
        let inside = call.and_then(|call| self.inside.get(&call));
        inside.copied().unwrap_or_default()
    }

    /// Returns the causes of all idle time of a device.
    pub fn idle(&self, device: &DeviceTime) -> Idle {
        let mut idle = Idle::default();
        self.gaps(device, device.busy.gaps(), &mut idle);
        for list in idle.longest.values_mut() {
            order_by(list, |stretch| {
                (Reverse(stretch.duration_ns), stretch.start_ns)
            });
        }
        idle
    }

    /// Returns the spans of idle time of a device that begin in this span of time, with their causes, in order.
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
        order_by(&mut all, |(_, stretch)| stretch.start_ns);
        all
    }

    fn gaps(&self, device: &DeviceTime, gaps: impl Iterator<Item = (i64, i64)>, idle: &mut Idle) {
        let (in_steps, _) = self.steps.all(device);
        // The work of the device that ends each gap.
        let all = 0..self.trace.work.len();
        let of_device = self.of_device.get(&(device.process, device.device));
        let mut places: Box<dyn Iterator<Item = usize>> = match of_device {
            Some(places) => Box::new(places.iter().map(|at| *at as usize)),
            None => Box::new(all),
        };
        let mut next: Option<usize> = None;
        for gap in gaps {
            let work = |at: usize| &self.trace.work[at];
            // No call submits a migration: the gap is attributed to the submitted work after it.
            if next.is_none_or(|at| work(at).start_ns < gap.1) {
                next = places.find(|at| work(*at).start_ns >= gap.1 && !work(*at).is_migration());
            }
            let mut rest = Rest {
                pieces: vec![gap],
                idle: &mut *idle,
                in_steps: &in_steps,
            };
            self.gap(device, gap, next, &mut rest);
        }
    }

    /// Returns the spans of a thread's own work between `start` and `end`, clipped to that time, each with the range around it.
    /// Own work is a span without any call for half a millisecond or more. One-time work does not count.
    pub fn own(&self, thread: ThreadIndex, start: i64, end: i64) -> Vec<(u64, Option<Because>)> {
        if start >= end {
            return Vec::new();
        }
        let lane = &self.threads[thread.0 as usize];
        let first = lane.own.partition_point(|own| own.1 <= start);
        let own = lane.own[first..].iter().take_while(|own| own.0 < end);
        let length = |(from, to, because): &Own| {
            let part = ((*from).max(start), (*to).min(end), *because);
            (lane.own_ns_of(&part), *because)
        };
        own.map(length).collect()
    }

    /// Returns the spans of own work, within some time, of the thread with the most such work, each with its length inside that
    /// time.
    pub fn main_own(&self, time: &Spans) -> Vec<(u64, Stretch)> {
        let main = self.threads.iter();
        let main = main.max_by_key(|lane| (!lane.is_backward && lane.calls > 0, lane.calls));
        let each = main
            .into_iter()
            .flat_map(|lane| lane.own.iter().map(move |own| (lane.own_ns_of(own), own)));
        let long = each.filter(|(own_ns, _)| *own_ns >= OWN_NS);
        let stretch = |(own_ns, (from, to, because)): (u64, &Own)| {
            let stretch = Stretch {
                start_ns: *from,
                duration_ns: from.abs_diff(*to),
                because: *because,
            };
            (own_ns.min(time.within_ns(*from, *to)), stretch)
        };
        long.map(stretch).filter(|(ns, _)| *ns > 0).collect()
    }

    /// Returns how much of some time of a thread would be missing in a longer run without the profiler: one-time work, and the
    /// profiler's and the driver's own work.
    pub fn apart_ns(&self, thread: ThreadIndex, start: i64, end: i64) -> u64 {
        if start >= end {
            return 0;
        }
        let initial = &self.threads[thread.0 as usize].initial;
        let once_ns = within_ns(initial, start, end);
        let own_ns = within_ns(&self.overhead, start, end);
        once_ns.saturating_add(own_ns).min(start.abs_diff(end))
    }

    /// Returns the wait that delays submitted work, as far as calls show it: the last wait that the submitting thread placed
    /// before the call. If earlier work of the stream followed that wait, the wait was complete by then.
    fn wait_before(&self, work: usize, call: usize) -> Option<Because> {
        let trace = self.trace;
        let (thread, stream) = (trace.calls[call].thread, trace.work[work].stream);
        let submits = |at: usize| {
            let first = self.works.first(at).filter(|first| *first < work);
            first.is_some_and(|first| trace.work[first].stream == stream)
        };
        if submits(call) {
            return None;
        }
        let before = (call.saturating_sub(64)..call).rev();
        for at in before.filter(|at| trace.calls[*at].thread == thread) {
            let before = &trace.calls[at];
            let of = self.waiting.get(&before.correlation);
            match before.api.kind {
                ApiKind::WaitEvent | ApiKind::HostFunc if of.is_none_or(|of| *of == stream) => {
                    return Some(Because::of(before.name));
                }
                _ if submits(at) => return None,
                _ => {}
            }
        }
        None
    }

    /// Takes the time before the first step and after the last one, where the program marks its steps.
    fn outside_steps(&self, rest: &mut Rest) {
        if let (false, Some(first), Some(last)) = (
            matches!(
                self.steps.by,
                StepsBy::Nothing | StepsBy::Repetition | StepsBy::GraphLaunch
            ),
            self.steps.steps.first(),
            self.steps.steps.last(),
        ) {
            rest.take((i64::MIN, first.start_ns), None, Cause::Startup);
            let after = last.end_ns.max(last.last_gpu_ns);
            rest.take((after, i64::MAX), None, Cause::Startup);
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
        self.outside_steps(rest);
        for (from, to, because) in overlapping(&self.overhead, start, end) {
            rest.take((*from, *to), Some(*because), Cause::ProfilerOverhead);
        }
        let call = next.and_then(|at| Some((at, self.links.call_of(at)?)));
        let call = call.filter(|_| !self.is_sample);
        let Some((work, at)) = call else {
            let short = end.abs_diff(start) <= LATENCY_NS;
            let cause = if short {
                Cause::DeviceLatency
            } else {
                Cause::Unattributed
            };
            return rest.take((start, end), None, cause);
        };
        let upload = self.is_pageable_upload(work);
        let inside = self.inside(at);
        let call = &self.trace.calls[at];
        let (asked, back) = (call.start_ns, call.end_ns());
        let name = Some(Because {
            name: call.name,
            inside,
        });
        let launched = Some(Because {
            name: call.name,
            inside: match self.region_of(at) {
                Some(region) => [None, None, Some(self.regions.all[region].name)],
                None => inside,
            },
        });
        let lane = &self.threads[call.thread.0 as usize];
        for (from, to, because) in overlapping(&lane.initial, start, end) {
            rest.take((*from, *to), Some(*because), Cause::Initialisation);
        }
        // From here on the host has done its part.
        let submitted = back.saturating_add(LATENCY_NS as i64);
        if submitted < end {
            let waited = (start.max(submitted), end);
            if waited.1.abs_diff(start) > LATENCY_NS {
                match self.wait_before(work, at) {
                    Some(wait) => rest.take(waited, Some(wait), Cause::StreamWait),
                    None => rest.take(waited, name, Cause::Unattributed),
                }
            }
        }
        if asked <= start {
            // The work had been submitted already.
            let cause = match () {
                () if back > start && upload => Cause::PageableCopy,
                () if back > start => Cause::LaunchBound,
                () => Cause::DeviceLatency,
            };
            let because = match cause {
                Cause::LaunchBound => launched,
                _ => name,
            };
            return rest.take((start, end), because, cause);
        }
        let late = asked.min(end);
        for (from, to, because) in overlapping(&lane.loading, start, late) {
            let stretch = ((*from).max(start), (*to).min(late));
            rest.take(stretch, Some(*because), Cause::HostStarved);
        }
        let held = lane.held_before(start, late);
        let could_run_ahead = lane.own_ns(device) < device.busy_ns();
        // Without steps nothing shows that the host would have had work to run ahead with.
        if held.is_none() || !could_run_ahead || self.steps.by == StepsBy::Nothing {
            let first = lane.own.partition_point(|own| own.1 <= start);
            let own = lane.own[first..].iter().take_while(|own| own.0 < late);
            // Time inside a wait for data is not own work.
            let own = own.filter(|own| lane.own_ns_of(own) >= OWN_NS);
            for (from, to, because) in own {
                let stretch = ((*from).max(start), (*to).min(late));
                rest.take(stretch, *because, Cause::HostWork);
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
            let stretch = if could_run_ahead {
                (start, end)
            } else {
                (from, to)
            };
            rest.take(stretch, Some(because), cause);
        }
        rest.take((start, end), launched, Cause::LaunchBound);
    }

    fn is_pageable_upload(&self, work: usize) -> bool {
        let work = &self.trace.work[work];
        let is_upload = work.what.direction() == Some(Direction::Upload);
        is_upload && work.host_memory() == Some(Memory::Pageable)
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

/// Returns whether a call that blocked the host waited for work submitted before its own. Then its length is that of the
/// awaited work, and does not show one-time work.
fn waited(trace: &Trace, at: usize, work: Option<usize>) -> bool {
    let Some(work) = work else { return false };
    let call = &trace.calls[at];
    let first = trace
        .work
        .partition_point(|work| work.start_ns < call.start_ns);
    held(trace, at, Some(work)).is_some() && first < work
}

/// Returns whether most of an operator is one call that waited for the device.
fn is_wait(trace: &Trace, works: &WorkOfCalls, range: &Range) -> bool {
    let first = trace
        .calls
        .partition_point(|call| call.start_ns < range.start_ns);
    let inside = trace.calls[first..].iter().take(64).enumerate();
    let mut inside = inside.take_while(|(_, call)| call.start_ns < range.end_ns());
    inside.any(|(at, call)| {
        let at = first + at;
        let most = call.thread == range.thread && call.duration_ns > range.duration_ns / 2;
        most && (call.api.kind.is_sync() || waited(trace, at, works.first(at)))
    })
}

/// Returns the streams that wait for events, by the correlation numbers of the calls.
fn waiting(trace: &Trace) -> HashMap<u32, StreamIndex> {
    let waits = trace.syncs.iter();
    let waits = waits.filter(|sync| sync.kind == SyncKind::StreamWait && sync.correlation != 0);
    waits
        .filter_map(|sync| Some((sync.correlation, sync.stream?)))
        .collect()
}

/// Returns the work of each device, if there are several.
fn by_device(trace: &Trace) -> HashMap<(Option<i64>, i64), Vec<u32>> {
    let mut of_device: HashMap<_, Vec<u32>> = HashMap::new();
    let place = |stream: &Stream| (stream.process, stream.device);
    let first = trace.streams.first().map(place);
    if trace
        .streams
        .iter()
        .all(|stream| Some(place(stream)) == first)
    {
        return of_device;
    }
    for (at, work) in trace.work.iter().enumerate() {
        let stream = &trace.streams[work.stream.0 as usize];
        of_device.entry(place(stream)).or_default().push(at as u32);
    }
    of_device
}

/// Returns whether workers of PyTorch's data loader load the data for which a program waits.
pub fn has_workers(trace: &Trace) -> bool {
    let is_of_worker = |name: &str| is_loading(name) && name.contains("MultiProcessing");
    trace.names.that(is_of_worker).contains(&true)
}

/// Returns whether this is the name of a range in which a program waits for its data.
pub fn is_loading(name: &str) -> bool {
    name.contains("DataLoader") || name.contains("dataloader") || name.contains("data_loader")
}
