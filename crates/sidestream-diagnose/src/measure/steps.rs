//! The steps of a program, and how long one takes.
//!
//! The time of a step is the median time from the last GPU operation of one step to that of the next. The length of its
//! annotation is not: the annotation ends when the host has submitted the step, which may be long before the device completes
//! it.

use std::collections::HashMap;

use super::devices::DeviceTime;
use super::iterations::GraphLaunches;
use super::links::Links;
use super::spans::Spans;
use crate::model::{Name, RangeKind, ThreadIndex, Trace, Work};
use crate::words::words;

/// The steps of a trace.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// How the steps were found.
    pub by: StepsBy,
    /// The steps in order. No step begins before the previous one.
    pub steps: Vec<Step>,
}

words! {
    /// How steps were found.
    #[derive(Default)]
    pub enum StepsBy {
        /// There are no steps.
        #[default]
        Nothing = "none",
        /// The profiler's schedule marks them: `ProfilerStep#N`.
        ProfilerStep = "profiler_step",
        /// An annotation of the program recurs and contains most of the work.
        Annotation = "annotation",
        /// Graphs are launched repeatedly and contain most of the work.
        GraphLaunch = "graph_launch",
        /// The work of the device repeats itself.
        Repetition = "repetition",
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When the host began the step; where the trace has no calls, when the device did.
    pub start_ns: i64,
    /// When the next one begins.
    pub end_ns: i64,
    /// When its first work on a device began.
    pub first_gpu_ns: i64,
    /// When its last work on a device ended.
    pub last_gpu_ns: i64,
    /// Number of operations that it submitted to devices.
    pub gpu_ops: usize,
}

impl Steps {
    /// Finds the steps of a trace.
    pub fn of(trace: &Trace, links: &Links) -> Steps {
        let found = |by, steps| Steps { by, steps };
        let marked = annotated(trace, links, RangeKind::Step, None);
        if marked.len() > 1 {
            return found(StepsBy::ProfilerStep, marked);
        }
        let of_profiler = trace.ranges.iter().filter(|r| r.kind == RangeKind::Step);
        let of_profiler = of_profiler.count();
        let launches = match of_profiler {
            0 => GraphLaunches::of(trace, links),
            _ => None,
        };
        let named = annotated(trace, links, RangeKind::Annotation, launches.as_ref());
        if named.len() > 2 {
            return found(StepsBy::Annotation, named);
        }
        if let Some(launches) = launches {
            let iterations = filled(trace, links, &launches.iterations(trace, links));
            if iterations.len() > 2 {
                return found(StepsBy::GraphLaunch, iterations);
            }
        }
        // In a trace with one marked step, what repeats is a part of the step: its layers, or parts of a batch.
        let repeated = match of_profiler {
            1 => Vec::new(),
            _ => repeated(trace, links),
        };
        if repeated.len() > 2 {
            return found(StepsBy::Repetition, repeated);
        }
        let by = if marked.is_empty() {
            StepsBy::Nothing
        } else {
            StepsBy::ProfilerStep
        };
        found(by, marked)
    }

    /// Returns the times from each step's last GPU operation to that of the next, in order.
    pub fn periods_ns(&self) -> Vec<u64> {
        let ends = self.steps.windows(2);
        ends.map(|pair| {
            pair[1]
                .last_gpu_ns
                .saturating_sub(pair[0].last_gpu_ns)
                .max(0) as u64
        })
        .collect()
    }

    /// Returns the median time of a step, if there are two or more.
    pub fn median_ns(&self) -> Option<u64> {
        quantile(&self.periods_ns(), 1, 2)
    }

    /// Returns two times: a tenth of the steps are faster than the first, a tenth slower than the second.
    pub fn spread_ns(&self) -> Option<(u64, u64)> {
        let periods = self.periods_ns();
        Some((quantile(&periods, 1, 10)?, quantile(&periods, 9, 10)?))
    }

    /// Returns the step that contains a moment of a device: a step lasts from the last GPU operation of the previous step to
    /// its own.
    pub fn on_device(&self, time_ns: i64) -> Option<usize> {
        let at = self.steps.partition_point(|s| s.last_gpu_ns <= time_ns);
        let step = self.steps.get(at)?;
        (at > 0 || step.first_gpu_ns <= time_ns).then_some(at)
    }

    /// Returns the time of all steps except the first, whose start on the device is not known, and their number: each lasts
    /// from the last GPU operation of the previous step to its own. Without steps, returns all of the device's time.
    pub fn all(&self, device: &DeviceTime) -> (Spans, u64) {
        let mut all = Spans::default();
        let mut count = 0;
        let mut over_ns = i64::MIN;
        for pair in self.steps.windows(2) {
            let (start, end) = (pair[0].last_gpu_ns, pair[1].last_gpu_ns);
            if start >= over_ns && start < end {
                all.push(start, end);
                over_ns = end;
                count += 1;
            }
        }
        if count == 0 {
            count = 1;
            let first = device.busy.iter().next();
            let last = device.busy.iter().last();
            if let (Some(first), Some(last)) = (first, last) {
                all.push(first.0, last.1);
            }
        }
        (all, count)
    }

    /// Returns the mean time of all steps, if there are two or more. The total time of a run is this mean times the number of
    /// steps.
    pub fn mean_ns(&self) -> Option<u64> {
        let periods = self.periods_ns();
        let sum: u128 = periods.iter().map(|ns| u128::from(*ns)).sum();
        let count = periods.len() as u128;
        u64::try_from(sum.checked_div(count)?).ok()
    }

    /// Returns the step that contains a moment of the host.
    pub fn at(&self, time_ns: i64) -> Option<usize> {
        let at = self.steps.partition_point(|s| s.start_ns <= time_ns);
        let at = at.checked_sub(1)?;
        (time_ns < self.steps[at].end_ns).then_some(at)
    }
}

/// Returns a quantile of some values: for the median of an even number, the mean of the two in the middle.
pub fn quantile(values: &[u64], part: usize, of: usize) -> Option<u64> {
    quantile_of(&mut values.to_vec(), part, of)
}

/// Like [`quantile`], but reorders the values in place.
pub fn quantile_of(values: &mut [u64], part: usize, of: usize) -> Option<u64> {
    values.sort_unstable();
    let sorted = values;
    let last = sorted.len().checked_sub(1)?;
    let (at, rest) = (last * part / of, last * part % of);
    let (low, high) = (sorted[at], sorted[(at + 1).min(last)]);
    // Files may state times so far apart that the product overflows.
    let part = u128::from(high - low) * rest as u128 / of as u128;
    Some(low + part as u64)
}

/// Finds steps that ranges mark. Of several kinds of ranges, it chooses the one from which most of the work comes. If that work
/// is graph launches, a range that marks a step must contain one: what an engine does between two launches is a part of a step.
fn annotated(
    trace: &Trace,
    links: &Links,
    kind: RangeKind,
    launches: Option<&GraphLaunches>,
) -> Vec<Step> {
    let mut groups: HashMap<(ThreadIndex, String), Vec<(i64, i64)>> = HashMap::new();
    let mut labels: HashMap<Name, String> = HashMap::new();
    for range in trace.ranges.iter().filter(|r| r.kind == kind) {
        if kind == RangeKind::Annotation && is_of_framework(trace.names.text(range.name)) {
            continue;
        }
        let label = labels
            .entry(range.name)
            .or_insert_with(|| without_numbers(trace.names.text(range.name)));
        let key = (range.thread, label.clone());
        let group = groups.entry(key).or_default();
        // A range inside one of the same name is not a separate step.
        if group.last().is_none_or(|last| last.1 <= range.start_ns) {
            group.push((range.start_ns, range.end_ns()));
        }
    }
    let marks = |group: &[(i64, i64)]| launches.is_none_or(|launches| launches.lie_in(group));
    groups.retain(|_, group| group.len() > 1 && marks(group));
    let mut best: Option<(usize, u64, Vec<Step>)> = None;
    let mut groups: Vec<_> = groups.into_iter().collect();
    // The result must not depend on the iteration order of a hash table.
    groups.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    for (_, group) in groups {
        let steps = filled(trace, links, &group);
        let gpu_ops = steps.iter().map(|step| step.gpu_ops).sum();
        let lengths = group.iter().map(|(start, end)| end.abs_diff(*start));
        let length_ns = lengths.fold(0, u64::saturating_add);
        if best
            .as_ref()
            .is_none_or(|b| (b.0, b.1) < (gpu_ops, length_ns))
        {
            best = Some((gpu_ops, length_ns, steps));
        }
    }
    match best {
        Some((gpu_ops, _, steps)) if 2 * gpu_ops >= trace.work.len() => steps,
        _ => Vec::new(),
    }
}

/// Returns whether frameworks give this name to parts of a step: programs do not mark steps with it.
pub fn is_of_framework(name: &str) -> bool {
    const PARTS: [&str; 13] = [
        "nccl:",
        "gloo:",
        "mpi:",
        "ucc:",
        "c10d::",
        "aten::",
        "torch::",
        "autograd::",
        "record_param_comms",
        "## Call CompiledFxGraph",
        "Torch-Compiled Region",
        "CompiledFunction",
        "TorchDynamo",
    ];
    PARTS.iter().any(|part| name.starts_with(part))
}

/// Returns ranges as steps, with the work submitted from the start of each to the start of the next. Steps without work are
/// left out.
fn filled(trace: &Trace, links: &Links, ranges: &[(i64, i64)]) -> Vec<Step> {
    let starts = ranges.iter().skip(1).map(|range| range.0);
    let last = ranges.last().map_or(0, |range| range.1);
    let ends = starts.chain([last]);
    let empty = |(range, end_ns): (&(i64, i64), i64)| Step {
        start_ns: range.0,
        end_ns,
        first_gpu_ns: i64::MAX,
        last_gpu_ns: i64::MIN,
        gpu_ops: 0,
    };
    let mut steps = Steps {
        by: StepsBy::Nothing,
        steps: ranges.iter().zip(ends).map(empty).collect(),
    };
    for (at, work) in trace.work.iter().enumerate() {
        let Some(call) = links.call_of(at) else {
            continue;
        };
        if let Some(step) = steps.at(trace.calls[call].start_ns) {
            steps.steps[step].add(work.start_ns, work.end_ns());
        }
    }
    steps.steps.retain(|step| step.gpu_ops > 0);
    steps.steps
}

impl Step {
    fn add(&mut self, start_ns: i64, end_ns: i64) {
        self.first_gpu_ns = self.first_gpu_ns.min(start_ns);
        self.last_gpu_ns = self.last_gpu_ns.max(end_ns);
        self.gpu_ops += 1;
    }
}

fn without_numbers(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The maximum number of names that are tried as the start of a step.
const MOST_MARKERS: usize = 64;

/// Finds steps where the work repeats itself: some name starts spans of equal length. Of several such names, it chooses the one
/// with the longest spans.
fn repeated(trace: &Trace, links: &Links) -> Vec<Step> {
    let mut counts: HashMap<Name, usize> = HashMap::new();
    for work in &trace.work {
        *counts.entry(work.name).or_default() += 1;
    }
    let mut markers: Vec<(usize, Name)> = counts
        .into_iter()
        .map(|(name, count)| (count, name))
        .filter(|(count, _)| *count > 2)
        .collect();
    markers.sort_unstable();
    markers.truncate(MOST_MARKERS);
    for (_, marker) in markers {
        let places: Vec<usize> = (0..trace.work.len())
            .filter(|at| trace.work[*at].name == marker)
            .collect();
        let lengths: Vec<u64> = places.windows(2).map(|p| (p[1] - p[0]) as u64).collect();
        let usual = quantile(&lengths, 1, 2).unwrap_or(0);
        if usual < 2 {
            // One operation repeated throughout is a loop, in which nothing marks the start of a step.
            continue;
        }
        // One allocation more or less does not make a different step.
        let near = |length: &&u64| length.abs_diff(usual) * 50 <= usual;
        let alike = lengths.iter().filter(near).count();
        let covers: u64 = lengths.iter().filter(near).sum();
        if alike * 10 < lengths.len() * 8 || covers * 2 < trace.work.len() as u64 {
            continue;
        }
        // Work that repeats itself in a small part of the time is a part of something larger: the layers of one pass.
        let over_ns = trace.work.iter().map(Work::end_ns).max().unwrap_or(0);
        let all_ns = over_ns.abs_diff(trace.work[0].start_ns);
        let apart = places.windows(2).map(|pair| {
            let starts = (trace.work[pair[0]].start_ns, trace.work[pair[1]].start_ns);
            starts.0.abs_diff(starts.1)
        });
        let apart: Vec<u64> = apart.collect();
        let usual_ns = u128::from(quantile(&apart, 1, 2).unwrap_or(0));
        if 2 * usual_ns * (places.len() as u128) < u128::from(all_ns) {
            continue;
        }
        // On the host, a step begins with the call for its first work.
        let called = |work: &usize| Some(trace.calls[links.call_of(*work)?].start_ns);
        let calls: Option<Vec<i64>> = places.iter().map(called).collect();
        let calls = calls.filter(|calls| calls.is_sorted());
        let begun = |at: usize| match &calls {
            Some(calls) => calls[at],
            None => trace.work[places[at]].start_ns,
        };
        return places
            .iter()
            .zip(places.iter().skip(1))
            .enumerate()
            .map(|(at, (from, to))| {
                let mut step = Step {
                    start_ns: begun(at),
                    end_ns: begun(at + 1),
                    first_gpu_ns: i64::MAX,
                    last_gpu_ns: i64::MIN,
                    gpu_ops: 0,
                };
                for work in &trace.work[*from..*to] {
                    step.add(work.start_ns, work.end_ns());
                }
                step
            })
            .collect();
    }
    Vec::new()
}
