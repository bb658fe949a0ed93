//! Finds the slow rank, the cause, and its cost.
//!
//! A rank that others wait for need not be slow: it may itself have waited in another group. So the run is replayed for each of
//! a few ranks, with that rank's own work made as long as the median of the ranks with the same exchanges; the rank with which
//! a step gains most is the slow one. The part by which its step exceeds theirs most is the cause.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::rerun::{Pace, Rerun};
use crate::digest::Digest;
use crate::digest::{Part, Parts};
use crate::measure::quantile;
use crate::sort::order_by;

/// The number of ranks that are tried for each reason to suspect one.
const TRIED: usize = 4;
/// The maximum number of ranks with the same exchanges with which a rank is compared.
const COMPARED: usize = 63;
/// The gain must be at least this part of a step.
const GAIN: f64 = 0.02;
/// The replay of the unchanged run may differ by this much.
const OFF: f64 = 0.05;

/// A rank that is slower than others, and makes the step longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// The rank, as an index.
    pub at: usize,
    /// The part of its step that exceeds that of the others most.
    pub cause: Part,
    /// The time by which this part exceeds theirs.
    pub cause_ns: u64,
    /// The name with most of that time, where the trace has one.
    pub name: Option<String>,
    /// The time by which the own work of the rank in a step is longer.
    pub excess_ns: u64,
    /// Number of ranks with which it is compared.
    pub compared: usize,
    /// Whether the compared ranks have the same exchanges as this rank; otherwise they are all other ranks.
    pub is_alike: bool,
    /// Time in a step by which kernels of the compared ranks were slower, in the median, beside exchanges that waited.
    pub slowed_ns: u64,
    /// Time of a step in the replay, and in the replay with this rank as fast as the median of the compared ranks.
    pub step_ns: (u64, u64),
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// One rank is slow.
    Found(Slow),
    /// None of the ranks that were tried shortens a step by 2 %.
    Nobody,
    /// The run cannot be replayed, and why.
    Unknown(String),
}

/// Returns two hashes that are equal for ranks which do the same: of the sequence of their exchanges, and of the exchanges in
/// any order.
fn shapes(digest: &Digest) -> (u64, u64) {
    let mut sequence = DefaultHasher::new();
    let mut counts: BTreeMap<(&str, u64, &str), u64> = BTreeMap::new();
    // By what each did first, as in a replay: how long an exchange waited in its stream differs.
    let mut rows: Vec<usize> = (0..digest.rows.len()).collect();
    order_by(&mut rows, |at| (digest.rows[*at].ready_ns(), *at));
    for row in rows.into_iter().map(|at| &digest.rows[at]) {
        let kind = &digest.kinds[row.kind as usize];
        let group = &digest.groups[kind.group as usize];
        let same = (&*kind.operation, kind.elements, &*group.description);
        same.hash(&mut sequence);
        *counts.entry(same).or_default() += 1;
    }
    let mut set = DefaultHasher::new();
    counts.hash(&mut set);
    (sequence.finish(), set.finish())
}

/// Returns the ranks that may be slow: those whose own work exceeds that of ranks with the same exchanges most, and those that were
/// waited for longest.
fn tried(shapes: &[(u64, u64)], own: &[u64], late_ns: &[u64]) -> Vec<usize> {
    let mut alike: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (shape, own) in shapes.iter().zip(own) {
        alike.entry(shape.1).or_default().push(*own);
    }
    let all_median = quantile(own, 1, 2).unwrap_or(0);
    let medians: BTreeMap<u64, u64> = alike
        .iter()
        .map(|(shape, own)| match own.len() {
            // A rank whose exchanges differ from those of every other rank is compared with all ranks.
            1 => (*shape, all_median),
            _ => (*shape, quantile(own, 1, 2).unwrap_or(0)),
        })
        .collect();
    let excess = |at: usize| own[at].saturating_sub(medians[&shapes[at].1]);
    let mut tried: Vec<usize> = (0..own.len()).collect();
    order_by(&mut tried, |at| (Reverse(excess(*at)), *at));
    let mut by_lateness: Vec<usize> = (0..own.len()).collect();
    order_by(&mut by_lateness, |at| (Reverse(late_ns[*at]), *at));
    tried.truncate(TRIED);
    tried.extend(by_lateness.into_iter().take(TRIED));
    tried.sort_unstable();
    tried.dedup();
    tried
}

/// Returns whether a rank's own work exceeds that of others by more than the difference varies from step to step.
fn is_steady(excesses_ns: &[f64]) -> bool {
    let count = excesses_ns.len() as f64;
    let mean = excesses_ns.iter().sum::<f64>() / count;
    let squares = excesses_ns.iter().map(|ns| (ns - mean) * (ns - mean));
    mean > (squares.sum::<f64>() / count).sqrt()
}

/// Finds the slow rank. `late_ns` is how long each rank was waited for.
pub fn search(
    ranks: &[(u32, &Digest)],
    rerun: &Rerun,
    late_ns: &[u64],
    measured_ns: u64,
) -> Search {
    let (base, _) = rerun.step_ns(None);
    let off = (base - measured_ns as f64).abs() / (measured_ns as f64).max(1.0);
    if off > OFF {
        return Search::Unknown(format!(
            "a replay of all ranks as they were takes {:.1} % more or less than the trace, so no rank is reported as slow",
            100.0 * off
        ));
    }
    let shapes: Vec<(u64, u64)> = ranks.iter().map(|(_, digest)| shapes(digest)).collect();
    let steps: Vec<_> = (0..ranks.len()).map(|at| rerun.own_ns(at)).collect();
    let mean = |at: usize, of: &dyn Fn(&[f64; 2]) -> f64| {
        (steps[at].iter().map(of).sum::<f64>() / steps[at].len() as f64) as u64
    };
    let each = || 0..ranks.len();
    let slowed: Vec<u64> = each().map(|at| mean(at, &|step| step[1])).collect();
    let own: Vec<u64> = each()
        .map(|at| mean(at, &|step| step[0] - step[1]))
        .collect();
    let mut best: Option<Slow> = None;
    for at in tried(&shapes, &own, late_ns) {
        let (peers, is_alike) = peers(&shapes, at);
        let median = |of: &dyn Fn(usize) -> u64| {
            let each: Vec<u64> = peers.iter().map(|peer| of(*peer)).collect();
            quantile(&each, 1, 2).unwrap_or(0)
        };
        let own_median = median(&|peer| own[peer]);
        let Some(excess_ns) = own[at].checked_sub(own_median).filter(|ns| *ns > 0) else {
            continue;
        };
        let in_sequence: Vec<usize> = peers
            .iter()
            .copied()
            .filter(|p| shapes[*p].0 == shapes[at].0)
            .collect();
        let pace = if in_sequence.is_empty() {
            None
        } else {
            Some(stretches(rerun, &in_sequence))
        };
        let pace = match &pace {
            Some(each) => Pace::Each(each),
            None => Pace::Factor(own_median as f64 / own[at] as f64),
        };
        let (step, hosted) = rerun.step_ns(Some((at, &pace)));
        if best
            .as_ref()
            .is_some_and(|best| best.step_ns.1 as f64 <= step)
            || base - step < GAIN * base
        {
            continue;
        }
        let parts: &Parts = &ranks[at].1.parts;
        // The host of the compared ranks may have been as slow, while they waited anyway.
        let hosted_ns = (hosted.iter().sum::<f64>() / hosted.len() as f64) as u64;
        let excesses = hosted.iter().enumerate().map(|(step, hosted)| {
            let own = |rank: usize| (steps[rank][step][0] - steps[rank][step][1]) as u64;
            own(at) as f64 - median(&own) as f64 - hosted
        });
        if !is_steady(&excesses.collect::<Vec<_>>()) {
            continue;
        }
        let more = |part: Part| {
            let others = median(&|p| {
                let ns = ranks[p].1.parts.ns(part);
                ns.saturating_sub(if part == Part::Compute { slowed[p] } else { 0 })
            });
            let hosted_ns = if part == Part::Host { hosted_ns } else { 0 };
            parts
                .ns(part)
                .saturating_sub(others.saturating_add(hosted_ns))
        };
        // `max_by_key` returns the last of equal elements.
        let cause = Part::ALL
            .iter()
            .rev()
            .copied()
            .max_by_key(|part| more(*part));
        let cause = cause.unwrap_or(Part::Other);
        best = Some(Slow {
            at,
            cause,
            cause_ns: more(cause),
            name: parts.name(cause).map(str::to_owned),
            excess_ns: excess_ns.saturating_sub(hosted_ns),
            compared: peers.len(),
            is_alike,
            slowed_ns: median(&|p| slowed[p]),
            step_ns: (base as u64, step as u64),
        });
    }
    best.map_or(Search::Nobody, Search::Found)
}

/// Returns the ranks with which a rank is compared: others with the same exchanges, or all others if there are none; and
/// whether they have the same exchanges.
fn peers(shapes: &[(u64, u64)], at: usize) -> (Vec<usize>, bool) {
    let others = |is_alike: bool| -> Vec<usize> {
        let others = (0..shapes.len()).filter(|other| *other != at);
        others
            .filter(|other| !is_alike || shapes[*other].1 == shapes[at].1)
            .collect()
    };
    let alike = others(true);
    let is_alike = !alike.is_empty();
    let chosen = if is_alike { alike } else { others(false) };
    let apart = chosen.len().div_ceil(COMPARED).max(1);
    (chosen.into_iter().step_by(apart).collect(), is_alike)
}

/// Returns the median of each stretch of own work, and of the host's.
fn stretches(rerun: &Rerun, peers: &[usize]) -> Vec<[f32; 2]> {
    let each: Vec<Vec<[f32; 2]>> = peers
        .iter()
        .map(|peer| rerun.stretches(*peer, true))
        .collect();
    let count = each.iter().map(Vec::len).min().unwrap_or(0);
    let mut values = vec![0.0; each.len()];
    let mut median = |at: usize, part: usize| {
        for (value, of) in values.iter_mut().zip(&each) {
            *value = of[at][part];
        }
        values.sort_by(f32::total_cmp);
        (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
    };
    (0..count)
        .map(|at| [median(at, 0), median(at, 1)])
        .collect()
}
