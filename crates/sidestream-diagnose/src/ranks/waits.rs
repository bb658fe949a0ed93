//! Measures which rank waited for which, how long, and in which group.
//!
//! All members of a collective that no rank can complete before all have arrived end together: a rank that is in it longer than
//! the one with the shortest time arrived earlier by the difference, regardless of the clocks. The same applies to a send and
//! its receive, unless the send was complete before the receive began. For broadcasts and reductions to one, the starts on the
//! common time are compared.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::clocks::Clocks;
use super::join::{Bond, Instance, Joined, row};
use crate::digest::{Digest, NO_SEQ};
use crate::measure::add;
use crate::sort::order_by;

/// How many of the worst exchanges are kept.
pub const WORST: usize = 10;
/// The maximum number of rows, and of columns, of a heat map.
const ROWS: usize = 64;
const COLUMNS: usize = 160;

/// One exchange in which a rank waited long.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// The operation, as the trace names it.
    pub operation: String,
    /// Index of its group.
    pub group: usize,
    /// Its sequence number in the group, where there is one.
    pub seq: Option<u32>,
    /// Number of input elements.
    pub elements: u64,
    /// The rank that arrived last, of those with traces, as an index.
    pub last: usize,
    /// The rank that waited longest, as an index, and its time.
    pub waited: (usize, u64),
    /// Total waiting time of all ranks.
    pub all_ns: u64,
    /// Its end, relative to the first of all exchanges.
    pub offset_ns: u64,
}

/// The waiting times in a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupWaits {
    /// Number of exchanges that were joined.
    pub exchanges: u64,
    /// Total time that its ranks waited in a step.
    pub all_ns: u64,
    /// The rank that waited most in a step, as an index, and its time.
    pub most: (usize, u64),
    /// The rank that was waited for most in a step, as an index, and that time.
    pub last: (usize, u64),
}

/// Waiting times by rank and exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heat {
    /// The first and last rank of each row, as indices.
    pub rows: Vec<(usize, usize)>,
    /// The times of the first and the last exchange of each column, relative to the first of all exchanges.
    pub columns: Vec<(u64, u64)>,
    /// Number of exchanges in a column.
    pub exchanges: usize,
    /// For each row, the longest wait in each column; `None` where it took part in no exchange.
    pub cells: Vec<Vec<Option<u64>>>,
}

/// All waiting times of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// Time that each rank waited in a step.
    pub waits_ns: Vec<u64>,
    /// Time that each rank was waited for in a step by the rank that waited longest each time.
    pub late_ns: Vec<u64>,
    /// Time that each rank waited in sends and receives in a step.
    pub pairs_ns: Vec<u64>,
    /// The waiting times of each joined group.
    pub groups: Vec<GroupWaits>,
    /// The exchanges with the longest waits.
    pub worst: Vec<Worst>,
    /// Waiting times by rank and exchange.
    pub heat: Heat,
}

/// Returns how long a member waited.
fn waits(
    ranks: &[(u32, &Digest)],
    joined: &Joined,
    clocks: &Clocks,
    instance: &Instance,
    into: &mut Vec<u64>,
) -> bool {
    let members = joined.of(instance);
    into.clear();
    match instance.bond {
        Bond::Together | Bond::Pair => {
            let durations = members.iter().map(|m| row(ranks, m).duration_ns);
            let least = durations.fold(f32::INFINITY, f32::min);
            into.extend(
                members
                    .iter()
                    .map(|m| (row(ranks, m).duration_ns - least) as u64),
            );
        }
        Bond::Rooted if clocks.is_common(members) => {
            let start = |m: &super::join::Member| clocks.common_ns(m.rank, row(ranks, m).start_ns);
            let last = members.iter().map(start).max().unwrap_or(0);
            into.extend(members.iter().map(|m| {
                let waited = last.saturating_sub(start(m)).max(0) as u64;
                waited.min(row(ranks, m).duration_ns as u64)
            }));
        }
        Bond::Rooted => return false,
        Bond::Buffered => into.resize(members.len(), 0),
    }
    true
}

impl GroupWaits {
    /// Adds up how long each rank of the group waited, and was waited for, in a step.
    fn sum_up(&mut self, of_ranks: BTreeMap<u32, [u64; 2]>, a_step: impl Fn(usize, u64) -> u64) {
        for (rank, [waited, late]) in of_ranks {
            let rank = rank as usize;
            let (waited, late) = (a_step(rank, waited), a_step(rank, late));
            add(&mut self.all_ns, waited);
            if waited > self.most.1 {
                self.most = (rank, waited);
            }
            if late > self.last.1 {
                self.last = (rank, late);
            }
        }
    }
}

impl Waits {
    /// Measures the waits in all joined exchanges.
    pub fn of(ranks: &[(u32, &Digest)], joined: &Joined, clocks: &Clocks) -> Waits {
        let count = ranks.len();
        let ends: Vec<i64> = joined
            .instances
            .iter()
            .map(|i| end(ranks, joined, clocks, i))
            .collect();
        let mut order: Vec<u32> = (0..joined.instances.len() as u32).collect();
        order.retain(|at| {
            let group = joined.instances[*at as usize].group;
            joined.groups[group as usize].is_sound
        });
        order_by(&mut order, |at| ends[*at as usize]);
        let begin = order.first().map_or(0, |at| ends[*at as usize]);
        let since = |at: u32| ends[at as usize].abs_diff(begin);
        let mut all = Waits {
            heat: heat(count, &order, &since),
            ..Waits::default()
        };
        let (mut waits_ns, mut late_ns, mut pairs_ns) =
            (vec![0u64; count], vec![0u64; count], vec![0u64; count]);
        let mut of_groups: Vec<BTreeMap<u32, [u64; 2]>> =
            vec![BTreeMap::new(); joined.groups.len()];
        all.groups = vec![GroupWaits::default(); joined.groups.len()];
        let mut each = Vec::new();
        for (column, at) in order.iter().enumerate() {
            let instance = &joined.instances[*at as usize];
            if !waits(ranks, joined, clocks, instance, &mut each) {
                continue;
            }
            let members = joined.of(instance);
            let group = instance.group as usize;
            all.groups[group].exchanges += 1;
            let longest = (0..each.len())
                .max_by_key(|at| (each[*at], Reverse(*at)))
                .unwrap_or(0);
            let shortest = (0..each.len())
                .min_by_key(|at| (each[*at], *at))
                .unwrap_or(0);
            let last = members[shortest].rank as usize;
            for (member, waited) in members.iter().zip(&each) {
                all.heat.add(member.rank as usize, column, *waited);
                if is_in_steps(ranks, member) {
                    add(&mut waits_ns[member.rank as usize], *waited);
                    add(
                        &mut of_groups[group].entry(member.rank).or_default()[0],
                        *waited,
                    );
                    if instance.bond == Bond::Pair {
                        add(&mut pairs_ns[member.rank as usize], *waited);
                    }
                }
            }
            if is_in_steps(ranks, &members[longest]) {
                add(&mut late_ns[last], each[longest]);
                add(
                    &mut of_groups[group].entry(last as u32).or_default()[1],
                    each[longest],
                );
            }
            let is_worse =
                all.worst.len() < WORST || all.worst.iter().any(|w| w.waited.1 < each[longest]);
            if is_worse && each[longest] > 0 {
                let of_row = row(ranks, &members[shortest]);
                let kind = &ranks[last].1.kinds[of_row.kind as usize];
                all.worst.push(Worst {
                    operation: kind.operation.clone(),
                    group,
                    seq: (of_row.seq != NO_SEQ).then_some(of_row.seq),
                    elements: kind.elements,
                    last,
                    waited: (members[longest].rank as usize, each[longest]),
                    all_ns: each.iter().fold(0, |sum, ns| u64::saturating_add(sum, *ns)),
                    offset_ns: since(*at),
                });
                order_by(&mut all.worst, |w| (Reverse(w.waited.1), w.offset_ns));
                all.worst.truncate(WORST);
            }
        }
        let a_step = |rank: usize, ns: u64| ns / steps(ranks[rank].1);
        for (group, of_group) in all.groups.iter_mut().zip(of_groups) {
            group.sum_up(of_group, a_step);
        }
        let each_step = |all: Vec<u64>| -> Vec<u64> {
            all.into_iter()
                .enumerate()
                .map(|(rank, ns)| a_step(rank, ns))
                .collect()
        };
        all.waits_ns = each_step(waits_ns);
        all.late_ns = each_step(late_ns);
        all.pairs_ns = each_step(pairs_ns);
        all
    }
}

/// Returns when an exchange ended on the common time.
fn end(ranks: &[(u32, &Digest)], joined: &Joined, clocks: &Clocks, instance: &Instance) -> i64 {
    let members = joined.of(instance).iter();
    let ends = members.map(|m| clocks.common_ns(m.rank, row(ranks, m).end_ns()));
    ends.max().unwrap_or(0)
}

/// Returns over how many steps the waits of a rank are summed.
fn steps(digest: &Digest) -> u64 {
    (digest.ends_ns.len() as u64).saturating_sub(1).max(1)
}

/// Returns whether a row lies in the steps of its rank, which begin at the end of the first step.
fn is_in_steps(ranks: &[(u32, &Digest)], member: &super::join::Member) -> bool {
    let digest = ranks[member.rank as usize].1;
    let end = row(ranks, member).end_ns();
    match digest.ends_ns[..] {
        // Durations are stored as `f32`, with seven digits.
        [first, .., last] => first.saturating_add(1_000) < end && end <= last.saturating_add(1_000),
        _ => true,
    }
}

/// Returns a heat map without values.
fn heat(ranks: usize, order: &[u32], since: &dyn Fn(u32) -> u64) -> Heat {
    let a_row = ranks.div_ceil(ROWS).max(1);
    let a_column = order.len().div_ceil(COLUMNS).max(1);
    let rows = (0..ranks)
        .step_by(a_row)
        .map(|from| (from, (from + a_row).min(ranks) - 1));
    let rows: Vec<(usize, usize)> = rows.collect();
    let columns = order
        .chunks(a_column)
        .map(|chunk| (since(chunk[0]), since(chunk[chunk.len() - 1])));
    let columns: Vec<(u64, u64)> = columns.collect();
    Heat {
        cells: vec![vec![None; columns.len()]; rows.len()],
        exchanges: a_column,
        rows,
        columns,
    }
}

impl Heat {
    fn add(&mut self, rank: usize, exchange: usize, waited_ns: u64) {
        let a_row = self.rows.first().map_or(1, |row| row.1 - row.0 + 1);
        let cell = self.cells.get_mut(rank / a_row);
        if let Some(cell) = cell.and_then(|row| row.get_mut(exchange / self.exchanges)) {
            *cell = Some(cell.unwrap_or(0).max(waited_ns));
        }
    }
}
