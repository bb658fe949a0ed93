//! Applies changes to a program. The engine determines their consequences.

use std::collections::BTreeMap;

use sidestream::engine::Profile;

use super::calibrate::{Profiler, Share};
use super::change::Change;
use super::program::{HostCopy, Item, Job, Pool, Program, Stretch};
use crate::measure::{add, is_of_framework};
use crate::model::{ApiKind, Memory, RangeKind, Source, Trace};

/// Approximate time of a copy call, including the profiler.
const COPY_CALL_NS: u64 = 10_000;
/// Approximate time of an allocation that reuses cached memory.
const TAKEN_NS: u64 = 2_000;
/// Python's time around a waiting call outside any operator: `torch.cuda.synchronize()` takes this long besides the CUDA call
/// (torch 2.11, NVIDIA H200).
const WAITING_CALL_NS: u64 = 11_000;
/// A host that was blocked is slower by a twelfth for this long: measured with thirty layers, with and without a wait after
/// each (torch 2.11, NVIDIA H200).
const COLD_NS: u64 = 100_000;
const COLD: u64 = 12;
/// After a wait of half a millisecond or more the host is half as fast for a quarter of a millisecond, while a profiler runs:
/// five programs with such a wait in each step were faster by that much without it (torch 2.11, NVIDIA H200).
const LONG_WAIT_NS: u64 = 500_000;
const LONG_COLD_NS: u64 = 250_000;
const LONG_COLD: u64 = 2;
/// Approximate time of launching a graph.
const GRAPH_LAUNCH_NS: u64 = 20_000;
/// With fewer launches a graph is not worth making.
const LEAST_LAUNCHES: usize = 8;
/// Approximate host time that PyTorch takes to switch to another stream and back, including the waits between them.
const SWITCH_NS: u64 = 60_000;
/// The maximum number of pending downloads of one size that are distinguished.
const MOST_ALIKE: usize = 64;
/// Time to take over the result of a worker, where it need not be copied.
const HAND_OVER_NS: u64 = 20_000;
/// A worker of PyTorch's data loader computes with one thread, and shares the CPU cores with the others. In one job, operators
/// on pictures took 1.15 times as long in each of eight workers as on the program's own thread (torch 2.11, 16 cores,
/// 2026-11-24).
const ON_ONE_THREAD_PERCENT: u64 = 115;

impl Change {
    /// Applies the change; returns whether there was anything to change.
    pub fn apply(&self, program: &mut Program, profile: &Profile, trace: &Trace) -> bool {
        match self {
            Change::Pinned => pinned(program, profile),
            Change::Prefetch(slots) => prefetch(program, *slots),
            Change::NoSync => no_sync(program, is_python(trace)),
            Change::AsyncOutput => async_output(program, profile, is_python(trace)),
            Change::Fused(range) => fused(program, range, trace),
            Change::Graphs => graphs(program),
            Change::Workers(count) => workers(program, *count),
            Change::MoreWorkers(times) => more_workers(program, *times),
            Change::HostWork(count) => host_work(program, *count, trace),
            Change::SecondStream => second_stream(program),
            Change::Pipeline(ranges) => pipeline(program, ranges, trace),
            Change::NonBlockingStreams => non_blocking_streams(program),
            Change::DropWait(waits, on) => drop_wait(program, *waits, *on),
        }
    }
}

/// Removes from the host's time what a longer run without the profiler would not have: one-time work, the profiler's own work,
/// and a share of what it usually adds to each operator and call. The host's own work keeps at least a part of its time.
pub fn without_profiler(program: &mut Program, profiler: Profiler, share: Share) {
    let less =
        |ns: u64, by_ns: u64| ns - (by_ns.saturating_mul(share.percent) / 100).min(ns / 4 * 3);
    let mut cold = vec![Cold::default(); program.lanes];
    for item in &mut program.items {
        if profiler != Profiler::default() && share.is_cold {
            let cold = &mut cold[item.lane as usize];
            cold.warm(item);
            if !item.waits.is_empty() && item.held_ns >= LONG_WAIT_NS {
                *cold = Cold::behind(item);
            }
        }
        let (own_apart_ns, call_apart_ns) = item.apart_ns;
        let kept_ns = item.kept_ns();
        item.own_ns = item.own_ns.saturating_sub(own_apart_ns).max(kept_ns);
        item.call_ns = item.call_ns.saturating_sub(call_apart_ns);
        let by_ns = profiler
            .operator_ns
            .saturating_mul(u64::from(item.operators));
        let call_ns = if item.submits.is_empty() {
            profiler.call_ns
        } else {
            profiler.submission_ns
        };
        let work_ns = item.own_ns - item.loading_ns.min(item.own_ns);
        let left_ns = less(work_ns, by_ns);
        item.own_ns = item.loading_ns.min(item.own_ns) + left_ns;
        // The rest of the cost of the operators, which the time before the call does not cover.
        let rest_ns = by_ns - (work_ns - left_ns).min(by_ns);
        item.call_ns = less(item.call_ns, call_ns.saturating_add(rest_ns));
        if share.is_steady {
            let steady = |ns: u64| ns.saturating_mul(100) / (100 + profiler.unsteady_percent);
            item.own_ns = steady(item.own_ns);
            item.call_ns = steady(item.call_ns);
        }
    }
}

fn pinned(program: &mut Program, profile: &Profile) -> bool {
    let (mut uploaded, mut changed) = (false, false);
    for item in &mut program.items {
        let mut is_upload = false;
        for at in item.submits.all() {
            let node = &mut program.nodes[at];
            if let Job::Upload(copy) | Job::Download(copy) = &mut node.job
                && copy.memory == Memory::Pageable
            {
                changed = true;
                copy.memory = Memory::Pinned;
                let at_link = (copy.bytes as f64 / profile.link_gb_s) as u64;
                node.duration_ns = at_link.min(node.duration_ns);
                is_upload = matches!(node.job, Job::Upload(_));
                item.call_ns = item.call_ns.min(COPY_CALL_NS);
                item.return_ns = item.return_ns.min(COPY_CALL_NS);
            }
        }
        if is_upload {
            item.waits = Stretch::default();
            item.return_ns = 0;
        } else if uploaded && item.kind == ApiKind::SyncStream {
            // A framework waits after an upload only if the memory is pageable.
            item.waits = Stretch::default();
            item.call_ns = 0;
            item.return_ns = 0;
        }
        uploaded = is_upload;
    }
    changed
}

/// A batch from a worker comes through shared memory: the receiving thread maps and copies it. The cost per batch and per byte
/// was measured in two pairs of runs with and without workers (PyTorch's DataLoader on 16 cores, 2026-11-22).
const TAKE_OVER_NS: u64 = 100_000;
const TAKE_OVER_GB_PER_S: f64 = 1.4;

fn workers(program: &mut Program, count: usize) -> bool {
    if program.items.iter().all(|item| item.loading_ns == 0) {
        return false;
    }
    program.workers[Pool::Loading as usize] = count;
    let mut uploaded = vec![0u64; program.steps];
    let mut batches = vec![0u64; program.steps];
    let mut batch = None;
    for item in program.items.iter().filter(|i| i.loading_ns > 0) {
        let is_next = batch.replace(item.batch) != Some(item.batch);
        batches[item.step as usize] += u64::from(is_next);
    }
    for node in &program.nodes[program.backlog..] {
        if let Job::Upload(HostCopy { bytes, .. }) = node.job {
            uploaded[node.step] = uploaded[node.step].saturating_add(bytes);
        }
    }
    let mut batch = None;
    for item in program.items.iter_mut().filter(|i| i.loading_ns > 0) {
        let step = item.step as usize;
        item.moved_ns = item.moved_ns.saturating_add(item.loading_ns);
        item.worker_ns = item.worker_ns.saturating_add(item.loading_ns);
        item.pool = Pool::Loading;
        if batch.replace(item.batch) != Some(item.batch) {
            let bytes = uploaded[step] / batches[step].max(1);
            let take_over_ns = (bytes as f64 / TAKE_OVER_GB_PER_S) as u64;
            item.take_over_ns = TAKE_OVER_NS.saturating_add(take_over_ns);
        }
    }
    true
}

/// Multiplies the workers: each of the `times` workers of the model has the pace of all existing workers together. The cost of
/// receiving a batch is in the trace already.
fn more_workers(program: &mut Program, times: usize) -> bool {
    let pace_ns = program.pace_ns;
    if pace_ns == 0 || !workers(program, times) {
        return false;
    }
    let mut batch = None;
    for item in program.items.iter_mut().filter(|i| i.loading_ns > 0) {
        let is_next = batch.replace(item.batch) != Some(item.batch);
        item.worker_ns = if is_next { pace_ns } else { 0 };
        item.take_over_ns = item.take_over_ns.min(TAKE_OVER_NS);
    }
    true
}

fn host_work(program: &mut Program, count: usize, trace: &Trace) -> bool {
    if program.items.iter().all(|item| item.movable_ns == 0) {
        return false;
    }
    program.workers[Pool::Other as usize] = count;
    for item in program.items.iter_mut().filter(|i| i.movable_ns > 0) {
        if item.moved_ns == 0 {
            (item.pool, item.batch) = (Pool::Other, item.step);
        }
        item.moved_ns = item.moved_ns.saturating_add(item.movable_ns);
        let is_operator =
            |name| trace.source == Source::Kineto && is_of_framework(trace.names.text(name));
        let percent = if item.host_work.is_some_and(is_operator) {
            ON_ONE_THREAD_PERCENT
        } else {
            100
        };
        let worker_ns = item.movable_ns.saturating_mul(percent) / 100;
        item.worker_ns = item.worker_ns.saturating_add(worker_ns);
        item.take_over_ns = item.take_over_ns.saturating_add(HAND_OVER_NS);
    }
    true
}

/// Returns whether a program may be Python's: C++ programs without named ranges make their calls directly.
fn is_python(trace: &Trace) -> bool {
    trace.source == Source::Kineto || !trace.ranges.is_empty()
}

fn no_sync(program: &mut Program, is_python: bool) -> bool {
    let mut changed = false;
    let mut cold = vec![Cold::default(); program.lanes];
    for item in &mut program.items {
        let lane = item.lane as usize;
        cold[lane].warm(item);
        let is_copy = item.submits.all().any(|at| {
            // Copies of memory that is not pinned block by themselves.
            let copy = program.nodes[at].job.host_copy();
            copy.is_some_and(|copy| copy.memory != Memory::Pinned)
        });
        if !item.waits.is_empty() && !is_copy {
            changed = true;
            cold[lane] = Cold::behind(item);
            item.stop_waiting(is_python);
        }
    }
    changed
}

/// For how long a thread is still slower after it was blocked, and by how much.
#[derive(Clone, Copy, Default)]
struct Cold {
    rest_ns: u64,
    part: u64,
}

impl Cold {
    /// Returns the state after the wait of a call.
    fn behind(item: &Item) -> Cold {
        if item.held_ns >= LONG_WAIT_NS {
            Cold {
                rest_ns: LONG_COLD_NS,
                part: LONG_COLD,
            }
        } else {
            Cold {
                rest_ns: COLD_NS,
                part: COLD,
            }
        }
    }

    /// Removes the slow-down from a call's time, except from loading and from the host's own work.
    fn warm(&mut self, item: &mut Item) {
        let kept_ns = item.kept_ns();
        for (ns, kept_ns) in [(&mut item.own_ns, kept_ns), (&mut item.call_ns, 0)] {
            let slow_ns = (*ns - kept_ns).min(self.rest_ns);
            if slow_ns > 0 {
                self.rest_ns -= slow_ns;
                *ns -= slow_ns / self.part;
            }
        }
    }
}

impl Item {
    /// Returns the part of the host's own time that is the program's own work, or its waiting for data.
    fn kept_ns(&self) -> u64 {
        let kept_ns = self.loading_ns.saturating_add(self.host_work_ns);
        kept_ns.min(self.own_ns)
    }

    /// Removes the call, and Python's time around it; an allocation reuses cached memory.
    fn stop_waiting(&mut self, is_python: bool) {
        self.waits = Stretch::default();
        self.return_ns = 0;
        if !self.submits.is_empty() {
            return;
        }
        let most_ns = if self.kind.is_sync() { 0 } else { TAKEN_NS };
        self.call_ns = self.call_ns.min(most_ns);
        if is_python && self.operators == 0 && self.kind.is_sync() {
            let kept_ns = self.kept_ns();
            self.own_ns -= (self.own_ns - kept_ns).min(WAITING_CALL_NS);
        }
    }

    /// Reduces a call to what a graph does not save: the program's own work, and its waiting for data.
    fn replay_as_graph(&mut self) {
        self.call_ns = 0;
        self.own_ns = self.kept_ns();
    }
}

fn async_output(program: &mut Program, profile: &Profile, is_python: bool) -> bool {
    let is_download = |job: &Job| matches!(job, Job::Download(_));
    let mut changed = false;
    // By lane and place in the step: the work that the corresponding call of the previous step waited for.
    let mut before: BTreeMap<(u32, usize), (u32, Stretch)> = BTreeMap::new();
    let (mut step, mut place) = (0, 0);
    for item in &mut program.items {
        if item.step != step {
            (step, place) = (item.step, 0);
        }
        for at in item.submits.all() {
            let node = &mut program.nodes[at];
            if let Job::Download(copy) = &mut node.job
                && matches!(copy.memory, Memory::Pageable | Memory::Unknown)
            {
                copy.memory = Memory::Pinned;
                let at_link = (copy.bytes as f64 / profile.link_gb_s) as u64;
                node.duration_ns = at_link.min(node.duration_ns);
                item.call_ns = item.call_ns.min(COPY_CALL_NS);
                changed = true;
            }
        }
        let waited = program.waited[item.waits.all()].iter();
        let for_output = waited
            .clone()
            .any(|at| is_download(&program.nodes[*at].job));
        if item.waits.is_empty() || !for_output {
            continue;
        }
        changed = true;
        let now = item.waits;
        let earlier = before.insert((item.lane, place), (step, now));
        place += 1;
        match earlier.filter(|earlier| earlier.0 < step) {
            Some((_, earlier)) => {
                item.waits = earlier;
                item.return_ns = item.return_ns.min(COPY_CALL_NS);
            }
            None => item.stop_waiting(is_python),
        }
    }
    changed
}

fn is_pinned_upload(job: &Job) -> bool {
    matches!(job, Job::Upload(copy) if copy.memory == Memory::Pinned)
}

/// Returns uploads of data that was downloaded before, as far as a trace shows it: of equally many bytes, after the host has
/// waited for the download. They cannot be made a step ahead. They count only if most of the uploaded bytes are of this kind.
fn fed_back(program: &Program) -> BTreeMap<usize, usize> {
    let mut fed = BTreeMap::new();
    // Downloads in flight, and those that the host has waited for, by their bytes.
    let mut under_way: Vec<(usize, u64)> = Vec::new();
    let mut here: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let (mut all_bytes, mut fed_bytes) = (0u64, 0u64);
    for item in &program.items {
        for at in item.submits.all() {
            match program.nodes[at].job {
                Job::Download(HostCopy { bytes, .. }) => under_way.push((at, bytes)),
                Job::Upload(HostCopy { bytes, .. }) => {
                    all_bytes = all_bytes.saturating_add(bytes);
                    if let Some(download) = here.get_mut(&bytes).and_then(Vec::pop) {
                        fed_bytes = fed_bytes.saturating_add(bytes);
                        fed.insert(at, download);
                    }
                }
                _ => {}
            }
        }
        for waited in &program.waited[item.waits.all()] {
            let stream = program.nodes[*waited].stream;
            under_way.retain(|(at, bytes)| {
                let is_complete = *at <= *waited && program.nodes[*at].stream == stream;
                if is_complete {
                    let here = here.entry(*bytes).or_default();
                    // A later download replaces one that was not uploaded.
                    if here.len() >= MOST_ALIKE {
                        here.remove(0);
                    }
                    here.push(*at);
                }
                !is_complete
            });
        }
    }
    if fed_bytes.saturating_mul(2) < all_bytes {
        fed.clear();
    }
    fed
}

fn prefetch(program: &mut Program, slots: usize) -> bool {
    let first = program.streams;
    let mut copies = program.nodes.iter().filter_map(|node| node.job.host_copy());
    if !copies.any(|copy| copy.memory == Memory::Pinned) {
        return false;
    }
    for device in 0..program.devices.max(1) {
        program.add_stream("uploads", device as u32);
        program.add_stream("downloads", device as u32);
    }
    // The uploads of a step are for a later one, so that a host that waits does not delay a copy.
    let ahead = slots - 1;
    let mut uploads_of: Vec<Vec<usize>> = vec![Vec::new(); program.steps];
    for (at, node) in program.nodes.iter().enumerate() {
        if is_pinned_upload(&node.job) {
            uploads_of[node.step].push(at);
        }
    }
    let earlier = |upload: usize, step: usize| {
        let place = uploads_of[step].binary_search(&upload).ok()?;
        let before = &uploads_of[step.checked_sub(ahead)?];
        before.get(place).or(before.last()).copied()
    };
    let fed = fed_back(program);
    // The last node of each stream before a copy, and the copies that must precede its next node, in the order of submission.
    let mut last: Vec<Option<usize>> = vec![None; program.streams];
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); program.streams];
    let mut last_of_step: Vec<Option<usize>> = vec![None; program.steps];
    let mut last_download: Vec<Option<usize>> = vec![None; program.steps];
    for at in 0..program.nodes.len() {
        let (stream, step) = (program.nodes[at].stream, program.nodes[at].step);
        let (uploads, downloads) = {
            let of_device = first + 2 * program.device_of[stream] as usize;
            (of_device, of_device + 1)
        };
        let freed = |of: &[Option<usize>], by: usize| of[step.checked_sub(by)?];
        match program.nodes[at].job {
            job if is_pinned_upload(&job) => {
                let slot = freed(&last_of_step, 1);
                let node = &mut program.nodes[at];
                node.stream = uploads;
                node.moved = true;
                // The copy waits for its slot only, and no longer for the work that the program made it wait for.
                node.legacy.clear();
                node.after.clear();
                node.after.extend(fed.get(&at).copied().or(slot));
                behind[stream].push(at);
            }
            Job::Download(copy) if copy.memory == Memory::Pinned => {
                program.nodes[at].stream = downloads;
                program.nodes[at].moved = true;
                program.nodes[at].after.extend(last[stream]);
                last_download[step] = Some(at);
            }
            _ => {
                let mut after = std::mem::take(&mut program.nodes[at].after);
                after.append(&mut behind[stream]);
                let of_batch = |before: usize| {
                    let node = &program.nodes[before];
                    if is_pinned_upload(&node.job) && !fed.contains_key(&before) {
                        earlier(before, node.step)
                    } else {
                        Some(before)
                    }
                };
                let mut after: Vec<usize> = after.into_iter().filter_map(of_batch).collect();
                after.extend(freed(&last_download, slots));
                program.nodes[at].after = after;
                last[stream] = Some(at);
                last_of_step[step] = Some(at);
            }
        }
    }
    true
}

fn graphs(program: &mut Program) -> bool {
    if program.is_at_once {
        return false;
    }
    let mut changed = false;
    let mut part: Vec<usize> = Vec::new();
    for at in 0..=program.items.len() {
        let place = |item: &Item| (item.step, item.lane);
        let item = program.items.get(at).filter(|item| item.waits.is_empty());
        let here = item.map(place);
        let first = part.first().map(|first| place(&program.items[*first]));
        if here.is_none() || first.is_some_and(|first| here != Some(first)) {
            changed |= as_graph(program, &part);
            part.clear();
        }
        if here.is_some() {
            part.push(at);
        }
    }
    changed
}

/// A fused optimizer, or one call instead of a loop, still takes a fifth of the host time that it saves: it examines each
/// tensor. The fifth is an assumption; predictions are also made for a quarter of it and for twice as much.
const FUSED: u64 = 5;

/// Replaces the calls inside ranges of a name by a few launches, step by step.
fn fused(program: &mut Program, range: &str, trace: &Trace) -> bool {
    let named = trace.ranges.iter().filter(|one| {
        let is_range = matches!(one.kind, RangeKind::Annotation | RangeKind::Operator);
        is_range && trace.names.text(one.name) == range
    });
    let mut spans: Vec<(i64, i64)> = Vec::new();
    for one in named {
        if spans.last().is_none_or(|last| last.1 <= one.start_ns) {
            spans.push((one.start_ns, one.end_ns()));
        }
    }
    let is_inside = |start_ns: i64| {
        let at = spans.partition_point(|span| span.1 <= start_ns);
        spans.get(at).is_some_and(|span| span.0 <= start_ns)
    };
    let mut of_steps: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for (at, item) in program.items.iter().enumerate() {
        if item.waits.is_empty() && is_inside(item.start_ns) {
            of_steps.entry((item.step, item.lane)).or_default().push(at);
        }
    }
    let mut changed = false;
    for part in of_steps.into_values() {
        let host_ns = |program: &Program| {
            let items = part.iter().map(|at| &program.items[*at]);
            items.fold(0u64, |sum, item| {
                sum.saturating_add(item.own_ns).saturating_add(item.call_ns)
            })
        };
        let before_ns = host_ns(program);
        if !as_graph(program, &part) {
            continue;
        }
        changed = true;
        let left_ns = before_ns.saturating_sub(host_ns(program)) / FUSED;
        let first = &mut program.items[part[0]];
        first.own_ns = first.own_ns.saturating_add(left_ns);
        first.fused_ns = left_ns;
    }
    changed
}

/// Submits the launches of the calls in `part` as one graph, if there are enough.
fn as_graph(program: &mut Program, part: &[usize]) -> bool {
    let launches = |program: &Program, at: usize| {
        let nodes = program.items[at].submits.all();
        let mut jobs = nodes.map(|n| program.nodes[n].job);
        !program.items[at].submits.is_empty() && jobs.all(|job| job.host_copy().is_none())
    };
    let count = part.iter().filter(|at| launches(program, **at)).count();
    if count < LEAST_LAUNCHES {
        return false;
    }
    let mut is_first = true;
    for at in part.iter().copied() {
        if launches(program, at) {
            for node in program.items[at].submits.all() {
                program.nodes[node].in_graph = true;
            }
            if std::mem::take(&mut is_first) {
                let item = &mut program.items[at];
                item.call_ns = item.call_ns.min(GRAPH_LAUNCH_NS);
                continue;
            }
        } else if is_first || !program.items[at].submits.is_empty() {
            continue;
        }
        // A replayed graph makes neither its later kernel launches nor the calls between them again.
        program.items[at].replay_as_graph();
    }
    true
}

fn non_blocking_streams(program: &mut Program) -> bool {
    let mut changed = false;
    for node in &mut program.nodes {
        changed |= !node.legacy.is_empty();
        node.legacy.clear();
    }
    changed
}

fn drop_wait(program: &mut Program, waits: i64, on: i64) -> bool {
    let number = |program: &Program, stream: usize| program.numbers.get(stream).copied();
    let mut changed = false;
    let mut dropped: Vec<usize> = Vec::new();
    for at in 0..program.nodes.len() {
        let node = &program.nodes[at];
        if number(program, node.stream) != Some(waits) || node.is_inferred {
            continue;
        }
        let is_upload = matches!(node.job, Job::Upload(_));
        let is_dropped = |of: &usize| number(program, program.nodes[*of].stream) == Some(on);
        let (gone, mut kept): (Vec<usize>, Vec<usize>) =
            node.after.iter().copied().partition(is_dropped);
        if gone.is_empty() {
            continue;
        }
        changed = true;
        if is_upload {
            // The slot of the upload is free when the work for which the previous upload waited is complete.
            kept.append(&mut dropped);
            dropped = gone;
        }
        program.nodes[at].after = kept;
    }
    changed
}

/// Adds the host time that PyTorch needs to switch streams.
fn switch(program: &mut Program) {
    let mut step = None;
    for item in program.items.iter_mut().filter(|i| i.operators > 0) {
        if step.replace(item.step) != Some(item.step) {
            item.own_ns = item.own_ns.saturating_add(SWITCH_NS);
        }
    }
}

/// Returns the stream that has most of the kernels.
fn main_stream(program: &Program) -> Option<usize> {
    let mut kernel_ns = vec![0u64; program.streams];
    for node in &program.nodes {
        if matches!(node.job, Job::Kernel { .. }) && !node.is_collective {
            add(&mut kernel_ns[node.stream], node.duration_ns);
        }
    }
    (0..program.streams).max_by_key(|stream| kernel_ns[*stream])
}

fn pipeline(program: &mut Program, ranges: &[String], trace: &Trace) -> bool {
    let named = |range: &&crate::model::Range| {
        matches!(range.kind, RangeKind::Annotation | RangeKind::Operator)
    };
    let mut spans: Vec<Vec<(i64, i64)>> = vec![Vec::new(); ranges.len()];
    for range in trace.ranges.iter().filter(named) {
        let name = trace.names.text(range.name);
        if let Some(stage) = ranges.iter().position(|stage| stage == name)
            && spans[stage]
                .last()
                .is_none_or(|last| last.1 <= range.start_ns)
        {
            spans[stage].push((range.start_ns, range.end_ns()));
        }
    }
    let stage_at = |start_ns: i64| {
        spans.iter().position(|spans| {
            let at = spans.partition_point(|span| span.1 <= start_ns);
            spans.get(at).is_some_and(|span| span.0 <= start_ns)
        })
    };
    let Some(main) = main_stream(program) else {
        return false;
    };
    let first = program.streams;
    for _ in 1..ranges.len() {
        program.add_stream("a stage", program.device_of[main]);
    }
    // The last node of each stage in each step.
    let mut last: Vec<Vec<Option<usize>>> = vec![vec![None; ranges.len()]; program.steps];
    let mut begun = vec![false; ranges.len()];
    let (mut step, mut stage) = (0, 0);
    for item in 0..program.items.len() {
        let (of_step, start_ns) = (
            program.items[item].step as usize,
            program.items[item].start_ns,
        );
        if of_step != step {
            (step, stage) = (of_step, 0);
        }
        // Calls between stages belong to the stage before them.
        stage = stage_at(start_ns).unwrap_or(stage);
        for at in program.items[item].submits.all() {
            if program.nodes[at].stream != main {
                continue;
            }
            let is_first = last[step][stage].is_none();
            let before = match stage {
                // The first stage fills the slot that was used two steps before.
                0 => step
                    .checked_sub(2)
                    .and_then(|step| last[step][ranges.len() - 1]),
                _ => last[step][stage - 1],
            };
            let node = &mut program.nodes[at];
            if stage > 0 {
                node.stream = first + stage - 1;
            }
            if is_first {
                node.after.extend(before);
            }
            last[step][stage] = Some(at);
            begun[stage] = true;
        }
    }
    switch(program);
    begun.iter().all(|begun| *begun)
}

fn second_stream(program: &mut Program) -> bool {
    let Some(main) = main_stream(program) else {
        return false;
    };
    let second = program.streams;
    program.add_stream("second stream", program.device_of[main]);
    let mut joins: Option<(usize, Option<usize>)> = None;
    for step in 0..program.steps {
        let of_step: Vec<usize> = (0..program.nodes.len())
            .filter(|at| program.nodes[*at].step == step && program.nodes[*at].stream == main)
            // A graph defines which of its nodes are independent.
            .filter(|at| !program.nodes[*at].in_graph && !program.nodes[*at].is_collective)
            .filter(|at| matches!(program.nodes[*at].job, Job::Kernel { .. }))
            .collect();
        let durations = of_step.iter().map(|at| program.nodes[*at].duration_ns);
        let all_ns = durations.fold(0, u64::saturating_add);
        let mut so_far: u64 = 0;
        let (mut last_main, mut last_second) = (None, None);
        for at in of_step {
            let node = &mut program.nodes[at];
            let is_second = so_far.saturating_add(node.duration_ns / 2) > all_ns / 2;
            let last = if is_second { last_second } else { last_main };
            let is_first = last.is_none();
            // A step begins when both halves of the previous one are complete.
            if let (Some((main, second)), true) = (joins, is_first) {
                node.after.push(main);
                node.after.extend(second);
            }
            if is_second {
                node.stream = second;
                last_second = Some(at);
            } else {
                last_main = Some(at);
            }
            so_far = so_far.saturating_add(node.duration_ns);
        }
        if let Some(main) = last_main {
            joins = Some((main, last_second));
        }
    }
    switch(program);
    joins.is_some_and(|(_, second)| second.is_some())
}
