//! Records that a trace should have and does not.

use std::collections::{BTreeMap, HashMap};

use super::links::Links;
use crate::model::{ApiKind, Name, RangeKind, Source, Trace};

/// Programs make at most about twenty calls for each call that PyTorch's profiler keeps, and CUDA counts all of them. Beyond
/// this ratio, most of what the profiler kept is not in the file.
const MOST_UNSEEN: u64 = 100;
/// With fewer calls, the ratio means nothing.
const LEAST_CALLS: u64 = 100;
/// The minimum number of launches of a graph from which the usual number of its operations is derived.
const LEAST_LAUNCHES: usize = 3;

/// Returns how many calls CUDA counted for each one in the trace, if the ratio shows that the trace is only a sample: then time
/// without calls may have had calls, and devices without visible work may have been busy.
pub fn sampled(trace: &Trace) -> Option<u64> {
    let numbers = trace.calls.iter().map(|call| call.correlation);
    let numbers = numbers.filter(|number| *number != 0);
    let count = numbers.clone().count() as u64;
    let (first, last) = (numbers.clone().min()?, numbers.max()?);
    let each = u64::from(last - first) / count;
    let is_sample = trace.source == Source::Kineto && count >= LEAST_CALLS && each >= MOST_UNSEEN;
    is_sample.then_some(each)
}

/// Returns a sentence about graph launches whose work is missing from the trace, in part or entirely; it names the graphs.
pub fn lost_of_graphs(trace: &Trace, links: &Links) -> Option<String> {
    let is_launch = |call: usize| trace.calls[call].api.kind == ApiKind::GraphLaunch;
    let launches: Vec<usize> = (0..trace.calls.len()).filter(|at| is_launch(*at)).collect();
    // The last launch may still have been running when the trace ended.
    let (_, launches) = launches.split_last()?;
    let mut work_of: BTreeMap<usize, Vec<Name>> = BTreeMap::new();
    for at in 0..trace.work.len() {
        if let Some(call) = links.call_of(at).filter(|call| is_launch(*call)) {
            work_of.entry(call).or_default().push(trace.work[at].name);
        }
    }
    let all = launches.len();
    let bare: Vec<usize> = launches
        .iter()
        .copied()
        .filter(|at| !work_of.contains_key(at))
        .collect();
    if let Some(first) = bare
        .first()
        .filter(|_| !work_of.is_empty() || all >= LEAST_LAUNCHES)
    {
        return Some(format!(
            "{} of {all} graph launches left no work in the trace, the first of them {}: what these graphs ran is missing, \
             so the device seems idle meanwhile",
            bare.len(),
            place(trace, *first),
        ));
    }
    // Launches of one graph begin with the same operation.
    let mut alike: HashMap<Name, Vec<usize>> = HashMap::new();
    for launch in launches {
        if let Some(first) = work_of[launch].first() {
            alike.entry(*first).or_default().push(*launch);
        }
    }
    let mut lost: Vec<(usize, usize, usize, usize, Name)> = Vec::new();
    for (name, launches) in alike {
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for launch in &launches {
            *lengths.entry(work_of[launch].len()).or_default() += 1;
        }
        let Some((length, count)) = lengths
            .into_iter()
            .max_by_key(|(length, count)| (*count, *length))
        else {
            continue;
        };
        if count < LEAST_LAUNCHES || 2 * count <= launches.len() {
            continue;
        }
        let whole = launches.iter().find(|at| work_of[*at].len() == length);
        let whole = whole.map_or(&[][..], |at| &work_of[at][..]);
        let is_short = |at: &&usize| {
            let work = &work_of[*at];
            work.len() < length && whole.starts_with(work)
        };
        let short = launches.iter().filter(is_short);
        if let Some(first) = short.clone().next() {
            lost.push((short.count(), launches.len(), length, *first, name));
        }
    }
    let (short, all, length, first, name) = lost.into_iter().max_by_key(|lost| (lost.0, lost.3))?;
    Some(format!(
        "{short} of {all} launches of the graph of {length} operations that begins with {} have fewer of them in the trace, the \
         first of them {}: either records are lost, or parts of the graph run only sometimes",
        trace.names.text(name),
        place(trace, first),
    ))
}

/// Returns where a call was made: the innermost range around it.
fn place(trace: &Trace, call: usize) -> String {
    let call = &trace.calls[call];
    let around = trace.ranges.iter().filter(|range| {
        matches!(
            range.kind,
            RangeKind::Annotation | RangeKind::Operator | RangeKind::Step
        ) && range.thread == call.thread
            && range.start_ns <= call.start_ns
            && call.end_ns() <= range.end_ns()
    });
    match around.min_by_key(|range| range.duration_ns) {
        Some(range) => format!("in {}", trace.names.text(range.name)),
        None => format!("in {}", trace.names.text(call.name)),
    }
}
