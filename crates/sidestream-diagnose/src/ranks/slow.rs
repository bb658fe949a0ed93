//! Which rank is slow, why, and what it costs.
//!
//! A rank that others wait for need not be slow: it may itself have waited in another group. So the run is run again with
//! the own work of one rank made as long as the median of those that exchange the same, for each of a few ranks; the one
//! with which a step gains most is the slow one. What its step has more of than theirs is the cause.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::rerun::{Pace, Rerun};
use crate::digest::Digest;
use crate::digest::{Part, Parts};
use crate::measure::quantile;
use crate::sort::order_by;

/// How many ranks are tried for each reason to suspect one.
const TRIED: usize = 4;
/// Of more ranks that exchange the same, so many are compared with.
const COMPARED: usize = 63;
/// What is gained has to be this part of a step.
const GAIN: f64 = 0.02;
/// A run that is run again as it was may be this far off.
const OFF: f64 = 0.05;

/// A rank that is slower than others, and makes the step longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Which, as a place.
    pub at: usize,
    /// What its step has most of beyond that of the others.
    pub cause: Part,
    /// How much more.
    pub cause_ns: u64,
    /// What stands for it, where the trace names anything.
    pub name: Option<String>,
    /// How much longer its own work in a step is.
    pub excess_ns: u64,
    /// With how many ranks it is compared.
    pub compared: usize,
    /// Whether those exchange the same as it does; else they are all others.
    pub is_alike: bool,
    /// A step as it was run again, and if this rank were as fast as the median of those.
    pub step_ns: (u64, u64),
}

/// What came of the search.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// One rank is slow.
    Found(Slow),
    /// With none of those that were tried, a step gains 2 %.
    Nobody,
    /// The run cannot be run again, and why.
    Unknown(String),
}

/// Ranks that do the same, by the sequence of their exchanges, and by what these are in any sequence.
fn shapes(digest: &Digest) -> (u64, u64) {
    let mut sequence = DefaultHasher::new();
    let mut counts: BTreeMap<(&str, u64, &str), u64> = BTreeMap::new();
    for row in &digest.rows {
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

/// Finds the slow rank. `late_ns` is how long each was waited for.
pub fn search(
    ranks: &[(u32, &Digest)],
    rerun: &Rerun,
    late_ns: &[u64],
    measured_ns: u64,
) -> Search {
    let base = rerun.step_ns(None);
    let off = (base - measured_ns as f64).abs() / (measured_ns as f64).max(1.0);
    if off > OFF {
        return Search::Unknown(format!(
            "a replay of all ranks as they were takes {:.1} % more or less than the trace, so that none is said to be slow",
            100.0 * off
        ));
    }
    let shapes: Vec<(u64, u64)> = ranks.iter().map(|(_, digest)| shapes(digest)).collect();
    let own: Vec<u64> = (0..ranks.len()).map(|at| rerun.own_ns(at) as u64).collect();
    let mut alike: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (shape, own) in shapes.iter().zip(&own) {
        alike.entry(shape.1).or_default().push(*own);
    }
    let all_median = quantile(&own, 1, 2).unwrap_or(0);
    let medians: BTreeMap<u64, u64> = alike
        .iter()
        .map(|(shape, own)| match own.len() {
            // One alone is compared with all.
            1 => (*shape, all_median),
            _ => (*shape, quantile(own, 1, 2).unwrap_or(0)),
        })
        .collect();
    let excess = |at: usize| own[at].saturating_sub(medians[&shapes[at].1]);
    let mut tried: Vec<usize> = (0..ranks.len()).collect();
    order_by(&mut tried, |at| (Reverse(excess(*at)), *at));
    let mut by_lateness: Vec<usize> = (0..ranks.len()).collect();
    order_by(&mut by_lateness, |at| (Reverse(late_ns[*at]), *at));
    tried.truncate(TRIED);
    tried.extend(by_lateness.into_iter().take(TRIED));
    tried.sort_unstable();
    tried.dedup();
    let mut best: Option<Slow> = None;
    for at in tried {
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
        let pace = match in_sequence.is_empty() {
            true => None,
            false => Some(stretches(rerun, &in_sequence)),
        };
        let pace = match &pace {
            Some(each) => Pace::Each(each),
            None => Pace::Factor(own_median as f64 / own[at] as f64),
        };
        let step = rerun.step_ns(Some((at, &pace)));
        if best
            .as_ref()
            .is_some_and(|best| best.step_ns.1 as f64 <= step)
            || base - step < GAIN * base
        {
            continue;
        }
        let parts: &Parts = &ranks[at].1.parts;
        let more = |part: Part| {
            parts
                .ns(part)
                .saturating_sub(median(&|p| ranks[p].1.parts.ns(part)))
        };
        // `max_by_key` takes the last of equals.
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
            excess_ns,
            compared: peers.len(),
            is_alike,
            step_ns: (base as u64, step as u64),
        });
    }
    best.map_or(Search::Nobody, Search::Found)
}

/// Those that a rank is compared with: others that exchange the same, else all others; and whether it is those.
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

/// The median of each stretch of own work.
fn stretches(rerun: &Rerun, peers: &[usize]) -> Vec<f32> {
    let each: Vec<Vec<f32>> = peers.iter().map(|peer| rerun.stretches(*peer)).collect();
    let count = each.iter().map(Vec::len).min().unwrap_or(0);
    let mut values = vec![0.0; each.len()];
    let median = |at: usize| {
        for (value, of) in values.iter_mut().zip(&each) {
            *value = of[at];
        }
        values.sort_by(f32::total_cmp);
        (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
    };
    (0..count).map(median).collect()
}
