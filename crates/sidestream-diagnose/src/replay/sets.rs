//! Selects the sets of changes to try: each change that could matter alone, and sets of those that gain together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::change::Change;
use super::program::{Job, Program};
use super::{Model, Prediction, Source};
use crate::measure::{add, is_of_framework};
use crate::model::{Memory, Name, RangeKind, Trace};
use crate::sort::order_by;
use sidestream::engine::Profile;

/// This many waits between two streams are not coincidence.
const LEAST_WAITS: usize = 3;
/// The maximum number of pairs of streams that are tried.
const MOST_PAIRS: usize = 3;
/// The maximum number of parts of a step that are tried with a few launches.
const MOST_FUSED: usize = 2;
/// A change joins a set if it makes a step shorter by this part.
const JOINS: f64 = 0.02;
/// The maximum number of changes in a set.
const MOST_TOGETHER: usize = 4;

/// Returns each of the usual changes alone.
pub fn singles(source: &Source, program: &Program) -> Vec<Vec<Change>> {
    let mut singles = vec![
        Change::Pinned,
        Change::Prefetch(2),
        Change::NoSync,
        Change::AsyncOutput,
        Change::Graphs,
    ];
    singles.push(if source.has_workers {
        Change::MoreWorkers(enough_times(source, program))
    } else {
        Change::Workers(usual_workers(source, program))
    });
    singles.extend([
        Change::HostWork(enough_workers(source, program)),
        Change::SecondStream,
        Change::NonBlockingStreams,
    ]);
    singles.extend(fused(source));
    singles.extend(waits(program));
    singles.extend(stages(source.trace, program).map(Change::Pipeline));
    singles.into_iter().map(|change| vec![change]).collect()
}

/// Returns the parts of a step for which a library could make fewer launches: optimizers that are not fused, and loops of
/// cells.
fn fused(source: &Source) -> Vec<Change> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for at in 0..source.trace.calls.len() {
        if let Some(region) = source.scene.region_of(at) {
            *counts.entry(region).or_default() += 1;
        }
    }
    let regions = source.scene.regions();
    let name = |at: &usize| source.trace.names.text(regions[*at].name);
    let mut all: Vec<(usize, usize)> = counts.into_iter().collect();
    all.retain(|(at, _)| regions[*at].may_be_fused(name(at)) && !name(at).contains(','));
    order_by(&mut all, |(at, count)| (Reverse(*count), *at));
    let most = all.iter().take(MOST_FUSED);
    most.map(|(at, _)| Change::Fused(name(at).to_owned()))
        .collect()
}

/// Returns four workers; or five, where one of four would get most of the slow batches: they take turns.
fn usual_workers(source: &Source, program: &Program) -> usize {
    let floor_ns = |count| loading_floor_ns(source, program, Change::Workers(count));
    if 4 * floor_ns(5) < 3 * floor_ns(4) {
        5
    } else {
        4
    }
}

/// Returns twice as many workers as there are, or four times and so on, as long as fewer would take longer than the rest of a
/// step.
fn enough_times(source: &Source, program: &Program) -> usize {
    let loading = program.items.iter().map(|item| item.loading_ns);
    let waited_ns = loading.fold(0, u64::saturating_add) / program.steps.max(1) as u64;
    let step_ns = source.steps.mean_ns().unwrap_or(0);
    let rest_ns = step_ns.saturating_sub(waited_ns);
    let is_enough =
        |times: &usize| loading_floor_ns(source, program, Change::MoreWorkers(*times)) <= rest_ns;
    [2, 4, 8, 16, 32].into_iter().find(is_enough).unwrap_or(64)
}

/// Returns four workers for host work; or eight, where four would still take longer than the rest of a step.
fn enough_workers(source: &Source, program: &Program) -> usize {
    let floor_ns = |count| loading_floor_ns(source, program, Change::HostWork(count));
    let step_ns = source.steps.mean_ns().unwrap_or(0);
    if floor_ns(4) > step_ns.saturating_sub(floor_ns(1)) {
        8
    } else {
        4
    }
}

/// Returns the least time of workers for a step, with this change.
fn loading_floor_ns(source: &Source, program: &Program, change: Change) -> u64 {
    let mut changed = program.clone();
    change.apply(&mut changed, &Profile::h200(), source.trace);
    changed.loading_floor_ns()
}

/// Returns waits that may be in the wrong place: waits of uploads for kernels, and of kernels for downloads. Waits in the
/// opposite direction are needed: the waiting operation uses the result of the other one.
fn waits(program: &Program) -> Vec<Change> {
    let mut pairs: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    for node in program.nodes.iter().filter(|node| !node.is_inferred) {
        for before in &node.after {
            let before = &program.nodes[*before];
            let is_one = match (node.job, before.job) {
                (Job::Upload(copy), Job::Kernel { .. }) => copy.memory == Memory::Pinned,
                (Job::Kernel { .. }, Job::Download(_)) => true,
                _ => false,
            };
            let numbers = &program.numbers;
            let pair = (numbers.get(node.stream), numbers.get(before.stream));
            if let ((Some(waits), Some(on)), true) = (pair, is_one) {
                *pairs.entry((*waits, *on)).or_default() += 1;
            }
        }
    }
    let mut pairs: Vec<_> = pairs
        .into_iter()
        .filter(|pair| pair.1 >= LEAST_WAITS)
        .collect();
    order_by(&mut pairs, |((waits, on), count)| {
        (Reverse(*count), *waits, *on)
    });
    let pairs = pairs.into_iter().take(MOST_PAIRS);
    pairs
        .map(|((waits, on), _)| Change::DropWait(waits, on))
        .collect()
}

/// Returns the two ranges of the program's own from which most of the kernels come, if they follow each other in each step.
fn stages(trace: &Trace, program: &Program) -> Option<Vec<String>> {
    let mut spans: BTreeMap<Name, Vec<(i64, i64)>> = BTreeMap::new();
    let (first, last) = (
        program.items.first()?.start_ns,
        program.items.last()?.start_ns,
    );
    let own = trace.ranges.iter().filter(|range| {
        let name = trace.names.text(range.name);
        let is_own = !is_of_framework(name) && !name.contains('#') && !name.contains(',');
        range.kind == RangeKind::Annotation
            && first <= range.end_ns()
            && range.start_ns <= last
            && is_own
    });
    for range in own {
        let spans = spans.entry(range.name).or_default();
        spans.push((range.start_ns, range.end_ns()));
    }
    let once = program.steps - program.steps / 10..=program.steps;
    spans.retain(|_, spans| once.contains(&spans.len()));
    let mut stages: Vec<(u64, Name)> = Vec::new();
    let mut all_ns = 0u64;
    let mut kernel_ns: BTreeMap<Name, u64> = BTreeMap::new();
    for item in &program.items {
        let nodes = item.submits.all().map(|at| &program.nodes[at]);
        let kernels = nodes.filter(|node| matches!(node.job, Job::Kernel { .. }));
        let ns = kernels
            .map(|node| node.duration_ns)
            .fold(0, u64::saturating_add);
        all_ns = all_ns.saturating_add(ns);
        for (name, spans) in &spans {
            let at = spans.partition_point(|span| span.1 <= item.start_ns);
            if spans.get(at).is_some_and(|span| span.0 <= item.start_ns) {
                add(kernel_ns.entry(*name).or_default(), ns);
            }
        }
    }
    let large = kernel_ns
        .into_iter()
        .filter(|(_, ns)| ns.saturating_mul(7) >= all_ns && *ns > 0);
    stages.extend(large.map(|(name, ns)| (ns, name)));
    order_by(&mut stages, |(ns, name)| (Reverse(*ns), *name));
    // Of nested ranges, the outer one contains all of the inner ones.
    let begins = |name: &Name| spans[name].first().map_or(0, |span| span.0);
    let apart = |a: &Name, b: &Name| {
        let mut pairs = spans[a].iter().zip(&spans[b]);
        pairs.all(|(a, b)| a.1 <= b.0 || b.1 <= a.0)
    };
    let pairs = stages.iter().enumerate();
    let mut pairs = pairs.flat_map(|(at, a)| stages[at + 1..].iter().map(move |b| (a.1, b.1)));
    let (a, b) = pairs.find(|(a, b)| apart(a, b))?;
    let mut both = [a, b];
    order_by(&mut both, begins);
    Some(both.map(|name| trace.names.text(name).to_owned()).to_vec())
}

/// Adds predictions for sets of changes. Starts with the best change or set, and adds to it the change that gains most in
/// addition, until no further change gains enough.
pub fn together(model: &Model, base: &Prediction, predictions: &mut Vec<Prediction>) {
    let effective =
        |p: &&Prediction| p.is_effective && !p.changes.iter().any(Change::is_conditional);
    let singles: Vec<Change> = predictions
        .iter()
        .filter(effective)
        .flat_map(|p| p.changes.clone())
        .collect();
    if singles.len() < 2 {
        return;
    }
    let step_ns = base.likely_ns.max(1) as f64;
    // Copies on their own streams gain nothing while the host waits for each copy: these changes are tried together.
    let joint: Vec<Vec<Change>> = [
        [Change::Pinned, Change::Prefetch(2), Change::NoSync],
        [Change::Pinned, Change::Prefetch(2), Change::AsyncOutput],
    ]
    .into_iter()
    .map(|set| {
        let of_use = |change: &Change| {
            singles.contains(change)
                || matches!(change, Change::Prefetch(_)) && singles.contains(&Change::Pinned)
        };
        set.into_iter().filter(of_use).collect()
    })
    .filter(|set: &Vec<Change>| set.len() > 1)
    .collect();
    let of_single = |p: &Prediction| (p.changes.clone(), p.likely_ns);
    let mut all: Vec<(Vec<Change>, u64)> = predictions
        .iter()
        .filter(effective)
        .map(of_single)
        .collect();
    all.extend(model.screen(joint));
    let mut best = all.into_iter().min_by_key(|(set, ns)| (*ns, set.len()));
    let mut found: Vec<Vec<Change>> = Vec::new();
    while let Some((set, likely_ns)) = best.take() {
        if set.len() > 1 {
            found.push(set.clone());
        }
        if set.len() >= MOST_TOGETHER {
            break;
        }
        let more = singles.iter().filter(|change| !set.contains(change));
        let sets = more.map(|change| {
            let mut set = set.clone();
            set.push(change.clone());
            set.sort_unstable();
            set
        });
        let next = model.screen(sets.collect()).into_iter();
        let gains =
            |(_, ns): &(Vec<Change>, u64)| likely_ns.saturating_sub(*ns) as f64 >= JOINS * step_ns;
        best = next.filter(gains).min_by_key(|(_, ns)| *ns);
    }
    found.dedup();
    let together = model.predict_all(&found, base);
    predictions.extend(together);
}
