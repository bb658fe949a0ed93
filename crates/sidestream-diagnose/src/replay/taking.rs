//! Converts a trace to a program: selects its steps, finds the order of operations, and how long each operation takes alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sidestream::op::StreamKind;

use super::LEAST_STEPS;
use super::edges::{Edges, Event};
use super::host::{Lanes, Loading, Operators};
use super::program::{HostCopy, Item, Job, Node, Pool, Program, Stretch, share};
use crate::idle::{OWN_NS, Scene};
use crate::measure::{Collectives, Links, Steps, WorkOfCalls, held, stream_kinds};
use crate::model::{
    ApiKind, Call, Direction, Stream, StreamIndex, SyncKind, ThreadIndex, Trace, What, Work,
};

/// More steps than this are taken only if they have few calls and little work.
const MOST_STEPS: usize = 40;
const MOST_SHORT_STEPS: usize = 2_048;
const LITTLE_WORK: usize = 20_000;
/// Steps with more calls or work than this add nothing new.
const ENOUGH_WORK: usize = 60_000;
/// The number of steps that are taken if they are longer than that.
const ENOUGH_STEPS: usize = 8;
/// The maximum number of calls, and of operations, that are taken, however many steps that is.
const MOST_WORK: usize = 400_000;
/// The greatest latency of a device between one stream and another.
const HOP_NS: i64 = 20_000;
/// The maximum time until a host notices that something is complete.
const NOTICED_NS: i64 = 30_000;

impl Program {
    /// Converts steps of a trace to a program.
    ///
    /// # Errors
    /// The steps are too long.
    pub fn of(
        trace: &Trace,
        links: &Links,
        works: &WorkOfCalls,
        steps: &Steps,
        scene: &Scene,
        first: usize,
    ) -> Result<Program, &'static str> {
        let taken = enough(trace, links, steps, first);
        if taken < LEAST_STEPS {
            return Err("three steps of the trace have more than 400,000 calls or GPU operations");
        }
        let step_of = |call: &Call| {
            let step = steps.at(call.start_ns)?.checked_sub(first)?;
            (step < taken).then_some(step)
        };
        let mut by_call: HashMap<usize, Vec<usize>> = HashMap::new();
        for at in 0..trace.work.len() {
            let call = links.call_of(at);
            if let Some(call) = call.filter(|call| step_of(&trace.calls[*call]).is_some()) {
                by_call.entry(call).or_default().push(at);
            }
        }
        let lanes = Lanes::of(trace);
        let of_steps = trace.calls.iter().filter(|call| step_of(call).is_some());
        let called_ns = of_steps.map(Call::end_ns).max().unwrap_or(i64::MIN);
        let submitted = by_call.values().flatten();
        let over_ns = submitted.map(|at| trace.work[*at].end_ns()).max();
        let mut making = Making::new(trace, works, lanes.count, over_ns.unwrap_or(called_ns));
        let begin_ns = steps.steps.get(first).map_or(0, |s| s.start_ns);
        let is_taken = |at: usize| {
            links
                .call_of(at)
                .and_then(|call| step_of(&trace.calls[call]))
                .is_some()
        };
        for work in backlog(trace, is_taken, begin_ns) {
            making.backlog(work, begin_ns);
        }
        if making.program.nodes.len() > MOST_WORK {
            return Err(
                "more than 400,000 GPU operations were queued before the first step of the trace",
            );
        }
        let mut ends = vec![begin_ns; lanes.count];
        let loading = Loading::of(trace);
        let operators = Operators::of(trace, &lanes, called_ns);
        for (at, call) in trace.calls.iter().enumerate() {
            let Some(step) = step_of(call) else {
                continue;
            };
            let nodes = making.program.nodes.len();
            let lane = lanes.of[call.thread.0 as usize];
            let submitted = by_call.remove(&at).unwrap_or_default();
            let end = ends[lane];
            if call.start_ns < end && call.end_ns() <= end && submitted.is_empty() {
                // A call inside another, whose time already contains it.
                continue;
            }
            let nested = call.start_ns < end;
            let mut item = item(call, (lane, step), end, scene, &loading, &operators);
            for work in submitted {
                making.node(work, step, call);
            }
            item.submits = Stretch::new(nodes..making.program.nodes.len());
            if call.api.kind == ApiKind::GraphLaunch {
                let began = item.submits.all().map(|node| making.start_ns(node)).min();
                let running_ns = call.end_ns().saturating_sub(began.unwrap_or(i64::MAX));
                item.running_ns = running_ns.max(0) as u64;
            }
            let holds = held(trace, at, works.first(at)).is_some();
            if holds && !nested {
                item.held_ns = call.duration_ns;
                making.hold(&mut item, call.start_ns, call.end_ns());
            }
            match call.api.kind {
                ApiKind::RecordEvent => making.record(call),
                ApiKind::WaitEvent => making.wait(call),
                _ => {}
            }
            ends[lane] = end.max(call.end_ns());
            making.program.items.push(item);
        }
        let mut program = making.program;
        let last = program.items.iter().map(|item| item.step as usize + 1);
        program.steps = last.max().unwrap_or(0);
        program.is_at_once = scene.submits_at_once();
        program.first_step = first;
        program.items.shrink_to_fit();
        program.nodes.shrink_to_fit();
        Ok(program)
    }
}

/// Returns a call with the activity of its lane since the previous call ended.
fn item(
    call: &Call,
    (lane, step): (usize, usize),
    end: i64,
    scene: &Scene,
    loading: &Loading,
    operators: &Operators,
) -> Item {
    let own_ns = call.start_ns.saturating_sub(end).max(0) as u64;
    let loading_ns = loading.within_ns(end, call.start_ns).min(own_ns);
    let from = call.start_ns.max(end);
    let apart_ns = (
        scene.apart_ns(call.thread, end.min(call.start_ns), call.start_ns),
        scene.apart_ns(call.thread, from, call.end_ns().max(from)),
    );
    let own = scene.own(call.thread, end, call.start_ns);
    let longest = own.iter().max_by_key(|own| own.0);
    let host_work = longest.and_then(|own| own.1).map(|because| because.name);
    let own_work = own.iter().map(|own| own.0).fold(0, u64::saturating_add);
    let own_work = if own_work < OWN_NS { 0 } else { own_work };
    let movable = own.iter().filter(|own| scene.is_movable(own.1));
    let movable = movable.map(|own| own.0).fold(0, u64::saturating_add);
    Item {
        lane: lane as u32,
        step: step as u32,
        own_ns,
        loading_ns,
        host_work_ns: own_work.min(own_ns - loading_ns),
        movable_ns: movable.min(own_work).min(own_ns - loading_ns),
        host_work,
        moved_ns: 0,
        worker_ns: 0,
        fused_ns: 0,
        batch: loading.batch_at(end),
        pool: Pool::Loading,
        take_over_ns: 0,
        apart_ns,
        start_ns: call.start_ns,
        thread: call.thread,
        call_ns: call.end_ns().saturating_sub(call.start_ns.max(end)).max(0) as u64,
        running_ns: 0,
        operators: operators.within(lane, end, call.end_ns()),
        submits: Stretch::default(),
        waits: Stretch::default(),
        return_ns: 0,
        held_ns: 0,
        kind: call.api.kind,
        name: call.name,
    }
}

/// Returns how many steps, starting at `first`, are enough to represent all of them.
pub fn enough(trace: &Trace, links: &Links, steps: &Steps, first: usize) -> usize {
    let mut calls = vec![0; (steps.steps.len() - first).min(MOST_SHORT_STEPS)];
    let mut work = calls.clone();
    let counted = |counts: &mut Vec<usize>, at_ns: i64| {
        let step = steps.at(at_ns).and_then(|step| step.checked_sub(first));
        if let Some(count) = step.and_then(|step| counts.get_mut(step)) {
            *count += 1;
        }
    };
    for call in &trace.calls {
        counted(&mut calls, call.start_ns);
    }
    for call in (0..trace.work.len()).filter_map(|at| links.call_of(at)) {
        counted(&mut work, trace.calls[call].start_ns);
    }
    let within = |most: usize| {
        let (mut all_calls, mut all_work) = (0, 0);
        let beyond = calls.iter().zip(&work).position(|(calls, work)| {
            all_calls += calls;
            all_work += work;
            all_calls.max(all_work) > most
        });
        beyond.unwrap_or(calls.len())
    };
    let few = within(ENOUGH_WORK).clamp(ENOUGH_STEPS, MOST_STEPS);
    within(LITTLE_WORK).max(few).min(within(MOST_WORK))
}

/// Returns the work that had been submitted when the first step began, and was not complete: in each stream, everything before
/// the first work of the steps themselves.
fn backlog(trace: &Trace, is_taken: impl Fn(usize) -> bool, begin_ns: i64) -> Vec<usize> {
    let mut queued = leading(trace, |at| !is_taken(at));
    queued.retain(|at| trace.work[*at].end_ns() > begin_ns);
    queued
}

/// Returns how much of the steps' work has no call in the trace. The first work in a stream does not count: the host was ahead
/// when the trace began, as the calls of later work show.
pub fn orphans(trace: &Trace, links: &Links) -> usize {
    let is_called = |at: usize| links.call_of(at).is_some();
    let mut later = vec![false; trace.streams.len()];
    for at in (0..trace.work.len()).filter(|at| is_called(*at)) {
        later[trace.work[at].stream.0 as usize] = true;
    }
    let mut queued = leading(trace, |at| !is_called(at));
    queued.retain(|at| later[trace.work[*at].stream.0 as usize] && !trace.work[*at].is_migration());
    links.orphans() - queued.len()
}

/// Returns, for each stream, the work before the first operation that fails a test.
fn leading(trace: &Trace, test: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut over = vec![false; trace.streams.len()];
    let is_leading = |at: &usize| {
        let over = &mut over[trace.work[*at].stream.0 as usize];
        *over |= !test(*at);
        !*over
    };
    (0..trace.work.len()).filter(is_leading).collect()
}

/// A program under construction.
struct Making<'t> {
    trace: &'t Trace,
    program: Program,
    collectives: Collectives,
    /// The last node of each stream, with its work.
    last_in_stream: HashMap<StreamIndex, (usize, usize)>,
    /// The end of the work before the last operation in the same stream.
    before_own_ns: i64,
    /// The ends of the work of each stream, with their nodes.
    ends: HashMap<StreamIndex, Vec<(i64, usize)>>,
    /// The time of each operation when it runs alone.
    alone_ns: Vec<u64>,
    /// The records that no wait has used yet.
    recorded: Vec<Recorded>,
    /// The records after which the next work of a thread is ordered.
    pending: HashMap<ThreadIndex, Vec<Recorded>>,
    /// The records after which the next work of a stream is ordered.
    pending_in: HashMap<StreamIndex, Vec<Recorded>>,
    /// The streams of records, by the correlation numbers of their calls, where the trace states them.
    stream_of_record: HashMap<u32, StreamIndex>,
    /// The rule book's state for the streams as they are, and for streams none of which waits for the legacy default stream.
    as_they_are: Edges,
    independent: Edges,
    /// The waits of streams, by the correlation numbers of their calls, where the trace has them: the waiting stream, and the
    /// number of the record.
    waits: HashMap<u32, (StreamIndex, u32)>,
}

/// A record of an event.
#[derive(Clone, Copy)]
struct Recorded {
    /// The correlation number of its call.
    correlation: u32,
    /// The last work before it in its stream.
    work: usize,
    /// Its events in the two rule books.
    events: (Event, Event),
}

impl<'t> Making<'t> {
    /// Begins a program that ends at this time of the trace.
    fn new(trace: &'t Trace, works: &WorkOfCalls, lanes: usize, over_ns: i64) -> Making<'t> {
        let devices: BTreeSet<i64> = trace.streams.iter().map(|s| s.device).collect();
        let devices: Vec<i64> = devices.into_iter().collect();
        let device_of = trace.streams.iter().map(|stream| {
            let at = devices.binary_search(&stream.device);
            at.unwrap_or(0) as u32
        });
        let device_of: Vec<u32> = device_of.collect();
        let kinds = stream_kinds(trace, works);
        // Each process has its own legacy default stream.
        let place = |s: &Stream| (s.process, s.device);
        let places: BTreeSet<_> = trace.streams.iter().map(place).collect();
        let places: Vec<_> = places.into_iter().collect();
        let at = |s: &Stream| places.binary_search(&place(s)).unwrap_or(0) as u32;
        let places = trace.streams.iter().map(at);
        let streams = kinds.iter().copied().zip(places);
        let as_they_are = Edges::new(streams.clone());
        let freed = |(_, device)| (StreamKind::NonBlocking, device);
        let independent = Edges::new(streams.map(freed));
        let records = trace.records.iter().filter(|r| r.correlation != 0);
        let waits = trace.syncs.iter().filter_map(|sync| {
            let known = sync.kind == SyncKind::StreamWait && sync.record_correlation != 0;
            let stream = sync.stream.filter(|_| known && sync.correlation != 0)?;
            Some((sync.correlation, (stream, sync.record_correlation)))
        });
        Making {
            trace,
            program: Program {
                lanes,
                streams: trace.streams.len(),
                devices: devices.len(),
                device_of,
                numbers: trace.streams.iter().map(|stream| stream.number).collect(),
                ..Program::default()
            },
            collectives: Collectives::of(trace),
            last_in_stream: HashMap::new(),
            before_own_ns: i64::MIN,
            ends: HashMap::new(),
            alone_ns: alone_ns(trace, over_ns),
            recorded: Vec::new(),
            pending: HashMap::new(),
            pending_in: HashMap::new(),
            stream_of_record: records.map(|r| (r.correlation, r.stream)).collect(),
            as_they_are,
            independent,
            waits: waits.collect(),
        }
    }

    /// Adds work that exists when the program begins, without the part that had run by then.
    fn backlog(&mut self, work: usize, begin_ns: i64) {
        let row = &self.trace.work[work];
        let over_ns = begin_ns.saturating_sub(row.start_ns).max(0) as u64;
        let left_ns = self.alone_ns[work].saturating_sub(over_ns);
        let node = self.program.nodes.len();
        self.program.nodes.push(Node {
            stream: row.stream.0 as usize,
            duration_ns: left_ns,
            job: job(self.trace, row),
            after: Vec::new(),
            legacy: Vec::new(),
            is_inferred: false,
            in_graph: false,
            is_collective: self.collectives.contains(row.name),
            moved: false,
            work,
            step: 0,
        });
        self.ordered_after(row.stream);
        self.program.backlog = self.program.nodes.len();
        let ends = self.ends.entry(row.stream).or_default();
        ends.push((row.end_ns(), node));
        self.last_in_stream.insert(row.stream, (node, work));
    }

    /// Submits the next node; returns the nodes of other streams after which it is ordered, and those after which it is ordered
    /// only because of the legacy default stream.
    fn ordered_after(&mut self, stream: StreamIndex) -> (Vec<usize>, Vec<usize>) {
        let all = self.as_they_are.submit(stream);
        let after = self.independent.submit(stream);
        let legacy = all.into_iter().filter(|node| !after.contains(node));
        (after.clone(), legacy.collect())
    }

    fn node(&mut self, work: usize, step: usize, call: &Call) {
        let (kind, thread) = (call.api.kind, call.thread);
        let row = &self.trace.work[work];
        let mut waited = self.pending.remove(&thread).unwrap_or_default();
        waited.extend(self.pending_in.remove(&row.stream).into_iter().flatten());
        for recorded in waited {
            // A wait that the times contradict was for something else.
            if self.trace.work[recorded.work].end_ns() <= row.start_ns {
                self.as_they_are.wait(row.stream, recorded.events.0);
                self.independent.wait(row.stream, recorded.events.1);
            }
        }
        let (mut after, legacy) = self.ordered_after(row.stream);
        let mut is_inferred = false;
        if after.is_empty() && legacy.is_empty() {
            after.extend(self.unseen(row, call));
            is_inferred = !after.is_empty();
        }
        let node = self.program.nodes.len();
        self.ends
            .entry(row.stream)
            .or_default()
            .push((row.end_ns(), node));
        self.program.nodes.push(Node {
            stream: row.stream.0 as usize,
            duration_ns: self.alone_ns[work],
            job: job(self.trace, row),
            after,
            legacy,
            is_inferred,
            in_graph: kind == ApiKind::GraphLaunch,
            is_collective: self.collectives.contains(row.name),
            moved: false,
            work,
            step,
        });
        // Graphs submit several operations at once, in the order of their starts.
        let before = self.last_in_stream.insert(row.stream, (node, work));
        let over_ns = before.map(|(_, work)| self.trace.work[work].end_ns());
        self.before_own_ns = over_ns.unwrap_or(i64::MIN);
    }

    /// Returns when the work of a node began.
    fn start_ns(&self, node: usize) -> i64 {
        self.trace.work[self.program.nodes[node].work].start_ns
    }

    /// Returns the work after which this operation must have been ordered: it was submitted to an idle stream and still did not
    /// start, for a reason that the trace does not show. The reason is assumed to be work of another stream that had just
    /// completed.
    fn unseen(&self, row: &Work, call: &Call) -> Option<usize> {
        let before = self.last_in_stream.get(&row.stream);
        let free_ns = before.map_or(i64::MIN, |(_, work)| self.trace.work[*work].end_ns());
        let could_ns = free_ns.max(call.end_ns());
        if row.start_ns < could_ns.saturating_add(HOP_NS) {
            return None;
        }
        let others = self
            .ends
            .iter()
            .filter(|(stream, _)| **stream != row.stream);
        let last_over = others.filter_map(|(_, ends)| {
            let over = ends.partition_point(|(end, _)| *end <= row.start_ns);
            ends.get(over.checked_sub(1)?)
        });
        let (end, node) = last_over.max()?;
        // Copies of one direction take turns by themselves, regardless of their streams.
        let is_turn = matches!(
            (job(self.trace, row), self.program.nodes[*node].job),
            (Job::Upload(_), Job::Upload(_)) | (Job::Download(_), Job::Download(_))
        );
        let is_near = end.saturating_add(HOP_NS) >= row.start_ns && *end > could_ns;
        (is_near && !is_turn).then_some(*node)
    }

    /// Records the last work of a stream; where the trace does not state the stream, the one that received work last.
    fn record(&mut self, call: &Call) {
        let known = self.stream_of_record.get(&call.correlation);
        let last = match known {
            Some(stream) => self.last_in_stream.get_key_value(stream),
            None => self.last_in_stream.iter().max_by_key(|(_, last)| last.0),
        };
        let Some((&stream, &(_, work))) = last else {
            return;
        };
        self.recorded.push(Recorded {
            correlation: call.correlation,
            work,
            events: (
                self.as_they_are.record(stream),
                self.independent.record(stream),
            ),
        });
        // Records without a wait are those of allocators and timers.
        if self.recorded.len() > 64 {
            self.recorded.remove(0);
        }
    }

    /// Joins a wait with the record that the trace names; otherwise with the last one.
    fn wait(&mut self, call: &Call) {
        if let Some((stream, record)) = self.waits.get(&call.correlation) {
            let named = self.recorded.iter().find(|r| r.correlation == *record);
            if let Some(named) = named {
                self.pending_in.entry(*stream).or_default().push(*named);
            }
            return;
        }
        if let Some(record) = self.recorded.pop() {
            self.pending.entry(call.thread).or_default().push(record);
        }
    }

    /// Finds the work that a call waits for: of the last work of each stream, that which was complete when the call returned.
    fn hold(&mut self, item: &mut Item, start_ns: i64, end_ns: i64) {
        let mut last_end = i64::MIN;
        let mut waits = Vec::new();
        let own = item.submits.all().next_back();
        let candidates = self.last_in_stream.values();
        for (node, work) in candidates {
            let over_ns = self.trace.work[*work].end_ns();
            let is_own = own == Some(*node);
            if item.kind != ApiKind::SyncDevice && own.is_some() && !is_own {
                continue;
            }
            if (is_own || over_ns <= end_ns)
                && (over_ns > last_end || item.kind == ApiKind::SyncDevice)
            {
                if item.kind != ApiKind::SyncDevice {
                    waits.clear();
                }
                waits.push(*node);
                last_end = last_end.max(over_ns);
            }
        }
        if waits.is_empty() && own.is_none() {
            // An event may be recorded after work that is not the last of its stream: then it is the work that completed just
            // before the call returned.
            let over = self.ends.values().filter_map(|ends| {
                let over = ends.partition_point(|(end, _)| *end <= end_ns);
                ends.get(over.checked_sub(1)?)
            });
            if let Some((end, node)) = over.max().filter(|(end, _)| *end > start_ns) {
                waits.push(*node);
                last_end = *end;
            }
        }
        if waits.is_empty() {
            return;
        }
        let before = self.program.waited.len();
        self.program.waited.extend(waits);
        item.waits = Stretch::new(before..self.program.waited.len());
        if last_end.saturating_add(NOTICED_NS) < start_ns {
            // There was nothing to wait for.
            return;
        }
        if own.is_some() {
            // A copy call prepares its copy before it waits for it. While the stream is busy with other work, the call already
            // waits.
            let began = self
                .last_in_stream
                .values()
                .find(|(node, _)| own == Some(*node));
            let began_ns = began.map_or(start_ns, |(_, work)| self.trace.work[*work].start_ns);
            let free_ns = self.before_own_ns.max(start_ns);
            item.call_ns = began_ns.saturating_sub(free_ns).max(0) as u64;
        } else {
            item.call_ns = 0;
        }
        item.return_ns = end_ns.saturating_sub(last_end.max(start_ns)).max(0) as u64;
    }
}

fn job(trace: &Trace, work: &Work) -> Job {
    match work.what {
        What::Kernel(kernel) => {
            let device = trace.streams[work.stream.0 as usize].device;
            let described = trace.devices.iter().find(|d| d.id == device);
            let sms = described.and_then(|d| d.sms).unwrap_or(0);
            Job::Kernel {
                share: share(&kernel, sms),
            }
        }
        What::Copy { bytes, .. } => {
            let copy = work.host_memory().map(|memory| HostCopy { memory, bytes });
            match (work.what.direction(), copy) {
                (Some(Direction::Upload), Some(copy)) => Job::Upload(copy),
                (_, Some(copy)) => Job::Download(copy),
                _ => Job::Other,
            }
        }
        What::Memset { .. } => Job::Other,
    }
}

/// Returns the time of each operation when it runs alone. Concurrent kernels slowed each other down as soon as they needed more
/// than the device has; the engine would slow them down a second time. Kernels that begin after this time are left as they are.
fn alone_ns(trace: &Trace, until_ns: i64) -> Vec<u64> {
    let mut alone: Vec<u64> = trace.work.iter().map(|work| work.duration_ns).collect();
    // The demand on each device changes at the start and at the end of a kernel.
    let mut changes: BTreeMap<i64, Vec<(i64, f64, usize)>> = BTreeMap::new();
    let works = trace.work.iter().enumerate();
    // A kernel of no duration slows down no other, and its end would come before its start.
    let works = works.filter(|(_, work)| work.start_ns <= until_ns && work.duration_ns > 0);
    for (at, work) in works {
        if let Job::Kernel { share } = job(trace, work) {
            let device = trace.streams[work.stream.0 as usize].device;
            let changes = changes.entry(device).or_default();
            changes.extend([(work.start_ns, share, at), (work.end_ns(), -share, at)]);
        }
    }
    for mut changes in changes.into_values() {
        // If one kernel ends when another begins, the end comes first.
        changes.sort_unstable_by_key(|change| (change.0, change.1 > 0.0, change.2));
        // Time that passed for all kernels, and how much less of it each of several concurrent kernels got.
        let (mut asked, mut before_ns, mut lost_ns) = (0.0_f64, i64::MIN, 0.0);
        for (time_ns, share, at) in changes {
            if asked > 1.0 {
                lost_ns += time_ns.abs_diff(before_ns) as f64 * (1.0 - 1.0 / asked);
            }
            before_ns = time_ns;
            asked += share;
            // Time lost before a kernel began does not count for it.
            let so_far = lost_ns as u64;
            alone[at] = if share > 0.0 {
                alone[at].saturating_add(so_far)
            } else {
                alone[at].saturating_sub(so_far)
            };
        }
    }
    alone
}
