//! Derives the latencies of the device from the trace.

use std::collections::{BTreeSet, HashMap};

use sidestream::engine::Profile;

use super::has_graphs;
use super::program::Program;
use crate::measure::{Links, Spans, copy_engines, quantile};
use crate::model::{ApiKind, Call, Source, StreamIndex, SyncKind, Trace, What};

/// Nanoseconds between two kernels of a graph as profilers record them: the median of the graphs in examples/traces, on an
/// H200.
pub const GRAPH_GAP_NS: f64 = 290.0;

/// Returns a profile for each device that has streams, in the order of their numbers.
pub fn profiles(
    trace: &Trace,
    links: &Links,
    program: &Program,
    link_gb_per_s: f64,
) -> Vec<Profile> {
    let waits = pending_waits(trace, program);
    let mut profile = profile(trace, links, &waits, link_gb_per_s);
    if has_graphs(program) {
        // The cost of a pending wait was measured with launches: the kernels of a graph do not wait for the front end.
        profile.pending_wait_ns = 0.0;
    }
    let devices: BTreeSet<i64> = trace.streams.iter().map(|s| s.device).collect();
    let profiles = devices.into_iter().map(|device| {
        let mut profile = profile.clone();
        let described = trace.devices.iter().find(|d| d.id == device);
        if let Some(sms) = described.and_then(|device| device.sms) {
            profile.sms = f64::from(sms);
        }
        if copy_engines(trace, device) == Some(1) {
            profile.copy_engines = 1.0;
        }
        profile
    });
    profiles.collect()
}

/// Returns a profile with the latencies of the trace and the speed of its link. Everything else is that of a known device;
/// durations are taken from the trace, so little of it matters.
fn profile(
    trace: &Trace,
    links: &Links,
    waits: &HashMap<i64, Spans>,
    link_gb_per_s: f64,
) -> Profile {
    let mut profile = Profile::h200();
    profile.link_gb_s = link_gb_per_s;
    profile.graph_gap_ns = GRAPH_GAP_NS;
    // The return time of each waiting call is stored with the call.
    profile.host_return_ns = 0.0;
    let mut seen = Seen::default();
    let mut last: HashMap<StreamIndex, usize> = HashMap::new();
    let mut over_ns: HashMap<i64, i64> = HashMap::new();
    let waiting = waiting_calls(trace);
    for (at, work) in trace.work.iter().enumerate() {
        let called_ns = |at: usize| Some(trace.calls[links.call_of(at)?].start_ns);
        let before = last.insert(work.stream, at).map(|before| {
            let before_ns = called_ns(before).unwrap_or(i64::MAX);
            (&trace.work[before], before_ns)
        });
        // The time until which the device had other work, in this stream or another.
        let device = trace.streams[work.stream.0 as usize].device;
        let over_ns = over_ns.entry(device).or_insert(i64::MIN);
        let busy_until_ns = std::mem::replace(over_ns, work.end_ns().max(*over_ns));
        let Some(call) = links.call_of(at).map(|call| &trace.calls[call]) else {
            continue;
        };
        let is_kernel = |what: &What| matches!(what, What::Kernel(_));
        let free_ns = before.map_or(i64::MIN, |(before, _)| before.end_ns());
        let submitted_ns = call.end_ns();
        if busy_until_ns > free_ns.max(submitted_ns) {
            // The operation may have waited for another stream's work, which is not a latency.
            continue;
        }
        let in_graph = call.api.kind == ApiKind::GraphLaunch;
        if free_ns < call.start_ns {
            // The stream was idle: the gap is the latency of the submission.
            let ns = work.start_ns.saturating_sub(submitted_ns).max(0) as u64;
            if is_kernel(&work.what) {
                seen.submit_kernel.push(ns)
            } else {
                seen.submit.push(ns)
            }
        } else if let Some((before, before_ns)) = before
            && submitted_ns.saturating_add(20_000) < free_ns
        {
            // The operation was queued long before, so the gap is the device's own latency.
            let ns = work.start_ns.saturating_sub(free_ns).max(0) as u64;
            match (is_kernel(&before.what) && is_kernel(&work.what), in_graph) {
                (true, true) => seen.graph_gap.push(ns),
                // Not a plain gap: a wait was pending on the device, or this stream waited. The simulator adds those costs
                // itself.
                (true, false) if is_pending(waits.get(&device), free_ns) => {}
                (true, false) if waits_between(waiting.get(&work.stream), before_ns, call) => {}
                (true, false) => seen.kernel_gap.push(ns),
                (false, _) => seen.hop.push(ns),
            }
        }
    }
    let set = |field: &mut f64, values: &[u64]| {
        if values.len() >= 5
            && let Some(median) = quantile(values, 1, 2)
        {
            *field = median as f64;
        }
    };
    set(&mut profile.submit_kernel_ns, &seen.submit_kernel);
    set(&mut profile.submit_ns, &seen.submit);
    set(&mut profile.kernel_gap_ns, &seen.kernel_gap);
    set(&mut profile.graph_gap_ns, &seen.graph_gap);
    set(&mut profile.engine_hop_ns, &seen.hop);
    profile
}

/// Returns when a stream of each device had only a wait for an event left.
fn pending_waits(trace: &Trace, program: &Program) -> HashMap<i64, Spans> {
    let end_ns = |node: usize| trace.work[program.nodes[node].work].end_ns();
    let mut last: HashMap<usize, usize> = HashMap::new();
    let mut waits: Vec<(i64, i64, i64)> = Vec::new();
    for (at, node) in program.nodes.iter().enumerate() {
        let before = last.insert(node.stream, at);
        let until_ns = node.after.iter().map(|after| end_ns(*after)).max();
        if let (Some(before), Some(until_ns)) = (before, until_ns)
            && end_ns(before) < until_ns
        {
            let device = trace.streams[node.stream].device;
            waits.push((device, end_ns(before), until_ns));
        }
    }
    waits.sort_unstable();
    let mut spans: HashMap<i64, Spans> = HashMap::new();
    for (device, start_ns, end_ns) in waits {
        spans.entry(device).or_default().push(start_ns, end_ns);
    }
    spans
}

/// Returns when each stream was made to wait for an event, as far as the trace names the stream.
fn waiting_calls(trace: &Trace) -> HashMap<StreamIndex, Vec<i64>> {
    let waits = trace
        .syncs
        .iter()
        .filter(|s| s.kind == SyncKind::StreamWait);
    let streams = waits.filter_map(|sync| Some((sync.correlation, sync.stream?)));
    let streams: HashMap<u32, StreamIndex> = streams.collect();
    let mut calls: HashMap<StreamIndex, Vec<i64>> = HashMap::new();
    for call in trace
        .calls
        .iter()
        .filter(|c| c.api.kind == ApiKind::WaitEvent)
    {
        if let Some(stream) = streams.get(&call.correlation) {
            calls.entry(*stream).or_default().push(call.start_ns);
        }
    }
    calls
}

fn waits_between(calls: Option<&Vec<i64>>, from_ns: i64, call: &Call) -> bool {
    let after = |calls: &Vec<i64>| {
        calls
            .get(calls.partition_point(|at| *at < from_ns))
            .copied()
    };
    calls.and_then(after).is_some_and(|at| at < call.start_ns)
}

fn is_pending(waits: Option<&Spans>, at_ns: i64) -> bool {
    waits.is_some_and(|spans| spans.within_ns(at_ns, at_ns.saturating_add(1)) > 0)
}

#[derive(Default)]
struct Seen {
    submit_kernel: Vec<u64>,
    submit: Vec<u64>,
    kernel_gap: Vec<u64>,
    graph_gap: Vec<u64>,
    hop: Vec<u64>,
}

/// Time that the profiler adds to the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profiler {
    /// Nanoseconds for each operator or annotation that it records.
    pub operator_ns: u64,
    /// Nanoseconds for each call that submits work.
    pub submission_ns: u64,
    /// Nanoseconds for any other CUDA call.
    pub call_ns: u64,
    /// The excess of the mean step of the host over the time expected from the fastest one, in hundredths, where all steps do
    /// the same. The profiler empties its buffers now and then, which takes the host longer than any step.
    pub unsteady_percent: u64,
}

/// Steps do the same if the numbers of their calls differ by at most one in this many.
const ALIKE_CALLS: usize = 20;
/// The usual length of the mean step, in hundredths of the fastest one.
const USUALLY: u64 = 125;
/// The maximum by which emptying buffers lengthens the mean step, in hundredths.
const MOST_UNSTEADY: u64 = 100;

impl Profiler {
    /// Returns what the profiler of a trace usually adds.
    ///
    /// Traces do not show it. The figures were measured in host-bound runs with and without PyTorch's profiler in one process
    /// (torch 2.11, NVIDIA H200, 2026-11-22). Before any profiler has run in a process steps are shorter still:
    /// [`Share::MOST`]. The other profilers were not measured: no time is removed for them.
    pub fn of(trace: &Trace, program: &Program) -> Profiler {
        match trace.source {
            Source::Kineto => Profiler {
                operator_ns: 1_600,
                submission_ns: 2_200,
                call_ns: 1_600,
                unsteady_percent: unsteady_percent(program).min(MOST_UNSTEADY),
            },
            Source::Nsight | Source::Sidestream => Profiler::default(),
        }
    }
}

fn unsteady_percent(program: &Program) -> u64 {
    let mut steps: Vec<(i64, usize)> = Vec::new();
    for item in &program.items {
        if item.loading_ns > 0 || item.host_work_ns > 0 {
            // The program's own work may take longer in some steps than in others.
            return 0;
        }
        while steps.len() <= item.step as usize {
            steps.push((item.start_ns.saturating_sub_unsigned(item.own_ns), 0));
        }
        steps[item.step as usize].1 += 1;
    }
    let counts = || steps.iter().map(|(_, calls)| *calls);
    let (most, least) = (counts().max().unwrap_or(0), counts().min().unwrap_or(0));
    if (most - least) * ALIKE_CALLS > most {
        return 0;
    }
    let lengths = steps
        .windows(2)
        .map(|s| s[1].0.saturating_sub(s[0].0).max(0) as u64);
    let lengths: Vec<u64> = lengths.collect();
    let (Some(quickest), count) = (lengths.iter().min().filter(|ns| **ns > 0), lengths.len())
    else {
        return 0;
    };
    let mean = lengths.iter().sum::<u64>() / count as u64;
    (mean.saturating_mul(10_000) / quickest / USUALLY).saturating_sub(100)
}

/// The share of the profiler's usual cost that it has in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The cost for each operator and call, in hundredths of the usual.
    pub percent: u64,
    /// Whether it slows down the host after a long wait.
    pub is_cold: bool,
    /// Whether steps without the profiler are as fast as the fastest one.
    pub is_steady: bool,
}

impl Share {
    /// The least.
    pub const LEAST: Share = Share {
        percent: 40,
        is_cold: false,
        is_steady: false,
    };
    /// The usual.
    pub const USUAL: Share = Share {
        percent: 100,
        is_cold: true,
        is_steady: false,
    };
    /// The maximum share: before any profile of their process, steps are faster than after one, by 3.0 and 4.6 µs per launch in
    /// two jobs of many small kernels (torch 2.11, CUDA 13.0, NVIDIA H200, 2026-11-24, benches/profiler_cost_gpu.py). The usual
    /// share is for steps after a profile.
    pub const MOST: Share = Share {
        percent: 170,
        is_cold: true,
        is_steady: true,
    };
}
