//! Device activity in the median step: the figures by which two traces, or the ranks of one run, are compared.
//!
//! A step is the span from the last GPU operation of the previous step to its own last one. Sums over a whole trace cannot be
//! compared: one trace may have more steps than the other, and its first ones are slow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::devices::{Class, Collectives, DeviceTime, class};
use super::spans::{Spans, add};
use super::steps::{Steps, quantile};
use crate::model::{Trace, Work};

/// The activity of devices in a step: each figure is its own median over the steps, and the mean of the devices. Without steps,
/// figures are of the whole trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerStep {
    /// Number of steps; 0 if the figures are of the whole trace.
    #[serde(rename = "count")]
    pub steps: usize,
    /// Duration of a step.
    pub time_ns: u64,
    /// A tenth of the steps are faster than this.
    pub p10_ns: u64,
    /// A tenth of the steps are slower than this.
    pub p90_ns: u64,
    /// Time in which a device was busy.
    pub busy_ns: u64,
    /// Time in which it was idle.
    pub idle_ns: u64,
    /// Time in which it ran kernels.
    pub kernel_ns: u64,
    /// Time in which it copied from or to the host.
    pub copy_ns: u64,
    /// Time in which it copied and ran no kernel.
    pub exposed_copy_ns: u64,
    /// Time in which it exchanged data with other devices.
    pub communication_ns: u64,
    /// Time in which it exchanged data and computed nothing.
    pub exposed_communication_ns: u64,
}

impl PerStep {
    /// Measures a trace.
    pub fn of(
        trace: &Trace,
        steps: &Steps,
        devices: &[DeviceTime],
        collectives: &Collectives,
    ) -> PerStep {
        let mut windows = Windows::of(steps);
        let of_steps = !windows.0.is_empty();
        if !of_steps {
            let starts = trace.work.iter().map(|work| work.start_ns);
            let ends = trace.work.iter().map(Work::end_ns);
            windows.0.extend(starts.min().zip(ends.max()));
        }
        let (copies, communication) = exposed(trace, devices, collectives, &windows);
        let count = devices.len().max(1) as u64;
        let median = |of: &dyn Fn(usize, (i64, i64)) -> u64| {
            let each = windows.0.iter().enumerate();
            let each: Vec<u64> = each.map(|(at, window)| of(at, *window) / count).collect();
            quantile(&each, 1, 2).unwrap_or(0)
        };
        let within = |of: fn(&DeviceTime) -> &Spans, (from, to)| -> u64 {
            let each = devices.iter().map(|device| of(device).within_ns(from, to));
            each.fold(0, u64::saturating_add)
        };
        let busy = |window| within(|device| &device.busy, window);
        let kernels = |window| within(|device| &device.kernels, window);
        let length = |(from, to): (i64, i64)| to.abs_diff(from).saturating_mul(count);
        let time_ns = if of_steps {
            steps.median_ns().unwrap_or(0)
        } else {
            median(&|_, window| length(window))
        };
        let (p10_ns, p90_ns) = steps.spread_ns().unwrap_or((time_ns, time_ns));
        PerStep {
            steps: if of_steps { steps.steps.len() } else { 0 },
            time_ns,
            p10_ns,
            p90_ns,
            busy_ns: median(&|_, window| busy(window)),
            idle_ns: median(&|_, window| length(window).saturating_sub(busy(window))),
            kernel_ns: median(&|_, window| kernels(window)),
            copy_ns: median(&|at, _| copies.all_ns[at]),
            exposed_copy_ns: median(&|at, _| copies.exposed_ns[at]),
            communication_ns: median(&|at, _| communication.all_ns[at]),
            exposed_communication_ns: median(&|at, _| communication.exposed_ns[at]),
        }
    }
}

/// Spans of a trace, in order, none of which overlaps the next.
struct Windows(Vec<(i64, i64)>);

impl Windows {
    /// Returns the spans from the last operation of each step to that of the next. A step that ends before the previous one
    /// gets no span.
    fn of(steps: &Steps) -> Windows {
        let mut windows = Vec::new();
        let mut ends = steps.steps.iter().map(|step| step.last_gpu_ns);
        let mut from = ends.next();
        for to in ends {
            if let Some(start) = from.filter(|start| *start < to) {
                windows.push((start, to));
            }
            from = from.max(Some(to));
        }
        Windows(windows)
    }

    /// Returns the parts of a span that lie in windows, each with its window.
    fn parts(&self, (start, end): (i64, i64)) -> impl Iterator<Item = (usize, (i64, i64))> {
        let first = self.0.partition_point(|window| window.1 <= start);
        let inside = self.0.iter().enumerate().skip(first);
        let inside = inside.take_while(move |(_, window)| window.0 < end);
        let parts = inside.map(move |(at, window)| (at, (window.0.max(start), window.1.min(end))));
        // A span may be empty.
        parts.filter(|(_, part)| part.0 < part.1)
    }
}

/// Sums over the windows.
struct Sums {
    all_ns: Vec<u64>,
    exposed_ns: Vec<u64>,
}

impl Sums {
    fn new(windows: &Windows) -> Sums {
        Sums {
            all_ns: vec![0; windows.0.len()],
            exposed_ns: vec![0; windows.0.len()],
        }
    }

    fn add(&mut self, windows: &Windows, span: (i64, i64), covered: Option<&Spans>) {
        for (at, (from, to)) in windows.parts(span) {
            let covered_ns = covered.map_or(0, |covered| covered.within_ns(from, to));
            let all_ns = to.abs_diff(from);
            add(&mut self.all_ns[at], all_ns);
            add(&mut self.exposed_ns[at], all_ns.saturating_sub(covered_ns));
        }
    }
}

/// Returns the time of copies with the host, and of communication: all of it, and the part that no other work hides.
fn exposed(
    trace: &Trace,
    devices: &[DeviceTime],
    collectives: &Collectives,
    windows: &Windows,
) -> (Sums, Sums) {
    let key = |work: &Work| {
        let stream = &trace.streams[work.stream.0 as usize];
        (stream.process, stream.device)
    };
    let is_class = |work: &Work, which: Class| class(work, collectives) == Some(which);
    let communicates = |work: &&Work| is_class(work, Class::Collective);
    // Kernels that compute are all kernels, unless some communicate.
    let mut computing: BTreeMap<(Option<i64>, i64), Spans> = BTreeMap::new();
    if trace.work.iter().any(|work| communicates(&work)) {
        let computes = trace.work.iter().filter(|w| is_class(w, Class::Compute));
        for work in computes {
            let spans = computing.entry(key(work)).or_default();
            spans.push(work.start_ns, work.end_ns());
        }
    }
    let kernels: BTreeMap<_, &Spans> = devices
        .iter()
        .map(|device| ((device.process, device.device), &device.kernels))
        .collect();
    let (mut copies, mut communication) = (Sums::new(windows), Sums::new(windows));
    // Work is in the order of its starts: the new part of each span follows from the end so far.
    let mut copied: BTreeMap<_, i64> = BTreeMap::new();
    let mut communicated: BTreeMap<_, i64> = BTreeMap::new();
    for work in &trace.work {
        let key = key(work);
        let span = |so_far: &mut BTreeMap<_, i64>| {
            let end = so_far.entry(key).or_insert(i64::MIN);
            let from = work.start_ns.max(*end);
            *end = work.end_ns().max(*end);
            (from, work.end_ns())
        };
        if work.is_host_copy() {
            let covered = kernels.get(&key).copied();
            copies.add(windows, span(&mut copied), covered);
        } else if communicates(&work) {
            let span = span(&mut communicated);
            communication.add(windows, span, computing.get(&key));
        }
    }
    (copies, communication)
}
