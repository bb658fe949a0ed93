//! The latencies of the device, as the trace has them.

use std::collections::{BTreeSet, HashMap};

use sidestream::engine::Profile;

use crate::measure::{Links, quantile};
use crate::model::{ApiKind, Source, StreamIndex, Trace, What};

/// From one kernel of a graph to the next, as profilers record kernels: the median of the graphs in
/// examples/traces, of an H200.
const GRAPH_GAP_NS: f64 = 290.0;

/// A profile for each device that has streams, in the order of their numbers.
pub fn profiles(trace: &Trace, links: &Links, link_gb_per_s: f64) -> Vec<Profile> {
    let profile = profile(trace, links, link_gb_per_s);
    let devices: BTreeSet<i64> = trace.streams.iter().map(|s| s.device).collect();
    let profiles = devices.into_iter().map(|device| {
        let mut profile = profile.clone();
        let described = trace.devices.iter().find(|d| d.id == device);
        if let Some(sms) = described.and_then(|device| device.sms) {
            profile.sms = f64::from(sms);
        }
        profile
    });
    profiles.collect()
}

/// A profile with the latencies of the trace and the speed of its link. All else is of a known device; durations
/// are taken from the trace, so that little of it matters.
fn profile(trace: &Trace, links: &Links, link_gb_per_s: f64) -> Profile {
    let mut profile = Profile::h200();
    profile.link_gb_s = link_gb_per_s;
    profile.graph_gap_ns = GRAPH_GAP_NS;
    // Each call that waits has the time of its own return.
    profile.host_return_ns = 0.0;
    let mut seen = Seen::default();
    let mut last: HashMap<StreamIndex, usize> = HashMap::new();
    let mut over_ns: HashMap<i64, i64> = HashMap::new();
    for (at, work) in trace.work.iter().enumerate() {
        let before = last
            .insert(work.stream, at)
            .map(|before| &trace.work[before]);
        // Up to here the device had other work, in this stream or another.
        let device = trace.streams[work.stream.0 as usize].device;
        let over_ns = over_ns.entry(device).or_insert(i64::MIN);
        let busy_until_ns = std::mem::replace(over_ns, work.end_ns().max(*over_ns));
        let Some(call) = links.call_of(at).map(|call| &trace.calls[call]) else {
            continue;
        };
        let is_kernel = |what: &What| matches!(what, What::Kernel(_));
        let free_ns = before.map_or(i64::MIN, |before| before.end_ns());
        let submitted_ns = call.end_ns();
        if busy_until_ns > free_ns.max(submitted_ns) {
            // It may have waited for another stream's work: that is no latency.
            continue;
        }
        let in_graph = call.api.kind == ApiKind::GraphLaunch;
        if free_ns < call.start_ns {
            // The stream was free: what passes is the way of the submission.
            let ns = work.start_ns.saturating_sub(submitted_ns).max(0) as u64;
            match is_kernel(&work.what) {
                true => seen.submit_kernel.push(ns),
                false => seen.submit.push(ns),
            }
        } else if let Some(before) = before
            && submitted_ns.saturating_add(20_000) < free_ns
        {
            // It was queued long before: what passes is the device's own.
            let ns = work.start_ns.saturating_sub(free_ns).max(0) as u64;
            match (is_kernel(&before.what) && is_kernel(&work.what), in_graph) {
                (true, true) => seen.graph_gap.push(ns),
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

#[derive(Default)]
struct Seen {
    submit_kernel: Vec<u64>,
    submit: Vec<u64>,
    kernel_gap: Vec<u64>,
    graph_gap: Vec<u64>,
    hop: Vec<u64>,
}

/// What the profiler adds to the host's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profiler {
    /// For each operator or annotation that it notes.
    pub operator_ns: u64,
    /// For each call that submits work.
    pub submission_ns: u64,
    /// For any other call of CUDA.
    pub call_ns: u64,
}

impl Profiler {
    /// What the profiler of a source usually adds.
    ///
    /// Traces do not show it. Runs that were timed with and without PyTorch's profiler and that the host bounds (torch
    /// 2.11, NVIDIA H200, 2026-11-22) had it add so much, all within [`Share::LEAST`] and [`Share::MOST`] but one, whose
    /// host was slowed down 2.5 times as much. The other profilers were not measured: nothing is taken out for them.
    pub fn of(source: Source) -> Profiler {
        match source {
            Source::Kineto => Profiler {
                operator_ns: 1_600,
                submission_ns: 2_200,
                call_ns: 1_600,
            },
            Source::Nsight | Source::Sidestream => Profiler::default(),
        }
    }
}

/// How much of what the profiler usually adds it adds in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// To each operator and call, in hundredths.
    pub percent: u64,
    /// Whether it slows down the host after a long wait.
    pub is_cold: bool,
}

impl Share {
    /// The least.
    pub const LEAST: Share = Share {
        percent: 40,
        is_cold: false,
    };
    /// The usual.
    pub const USUAL: Share = Share {
        percent: 100,
        is_cold: true,
    };
    /// The most.
    pub const MOST: Share = Share {
        percent: 125,
        is_cold: true,
    };
}
