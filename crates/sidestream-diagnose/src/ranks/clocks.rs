//! Aligns the clocks of the ranks by their common exchanges.
//!
//! Each rank's trace has the time of its own machine. A collective that no rank can complete before all have arrived ends on
//! all ranks within microseconds, so the difference of its ends is the difference of two clocks. For two ranks, the median over
//! all collectives that they ended together is taken, once for the first half of the trace and once for the second, and a
//! straight line is drawn through both: clocks run at slightly different speeds. The median tolerates single exchanges that end
//! apart. Ranks that share no exchange are compared through others that share one with both, along a tree of the pairs with the
//! most exchanges; sends and receives are used only where there is no collective.
//!
//! Lines between clocks from messages: A. Duda, G. Harrus, Y. Haddad, G. Bernard, "Estimating global time in distributed
//! systems", ICDCS 1987. Collectives as common points, and interpolation between two of them: D. Becker, R. Rabenseifner,
//! F. Wolf, J. Linford, "Scalable timestamp synchronization for event traces of message-passing applications", Parallel
//! Computing 35(12), 2009. The median of differences in place of least squares: P. K. Sen, JASA 63, 1968.

use std::collections::BTreeMap;

use super::join::{Bond, Instance, Joined, row};
use crate::digest::Digest;

/// Differences kept per pair of ranks; of more, every second one is kept, and so on.
const SAMPLES: usize = 512;
/// Two halves with fewer differences each do not show the speed of a clock.
const HALF: usize = 8;

/// The offset of a rank's clock from the common time.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset_ns: i64,
    /// The time from which the offset changes, by `slope` for each nanosecond.
    from_ns: i64,
    slope: f64,
}

/// The clocks of all ranks.
#[derive(Clone, Debug)]
pub struct Clocks {
    clocks: Vec<Clock>,
    /// Ranks with a common time have equal numbers here.
    pub parts: Vec<u32>,
    /// Median distance between the ends of a collective on the common time; `None` without collectives.
    pub error_ns: Option<u64>,
}

/// The differences between two ranks' ends, by the time of the second.
#[derive(Default)]
struct Differences {
    samples: Vec<(i64, i64)>,
    seen: usize,
    stride: usize,
}

impl Differences {
    fn push(&mut self, time_ns: i64, difference_ns: i64) {
        self.stride = self.stride.max(1);
        if self.seen.is_multiple_of(self.stride) {
            self.samples.push((time_ns, difference_ns));
        }
        self.seen += 1;
        if self.samples.len() > SAMPLES {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Returns the offset that converts a time of the second rank to the clock of the first.
    fn clock(&mut self) -> Clock {
        self.samples.sort_unstable();
        let half = self.samples.len() / 2;
        let whole = median(&self.samples);
        let mut clock = Clock {
            offset_ns: whole.1,
            from_ns: whole.0,
            slope: 0.0,
        };
        if half < HALF {
            return clock;
        }
        let (first, second) = (median(&self.samples[..half]), median(&self.samples[half..]));
        let time = second.0.saturating_sub(first.0) as f64;
        let slope = second.1.saturating_sub(first.1) as f64 / time.max(1.0);
        // Quartz clocks are off by some tens of millionths; a greater slope has another cause.
        if slope.abs() < 1e-3 {
            clock = Clock {
                offset_ns: first.1,
                from_ns: first.0,
                slope,
            };
        }
        clock
    }
}

/// Returns the median of the times, and that of the differences.
fn median(samples: &[(i64, i64)]) -> (i64, i64) {
    let middle = |of: &dyn Fn(&(i64, i64)) -> i64| {
        let mut values: Vec<i64> = samples.iter().map(of).collect();
        let at = values.len() / 2;
        if values.is_empty() {
            0
        } else {
            *values.select_nth_unstable(at).1
        }
    };
    (middle(&|s| s.0), middle(&|s| s.1))
}

impl Clocks {
    /// Aligns the clocks of ranks, and marks groups as unsound whose exchanges do not end together.
    pub fn of(ranks: &[(u32, &Digest)], joined: &mut Joined) -> Clocks {
        let mut pairs: BTreeMap<(u32, u32), (Bond, Differences)> = BTreeMap::new();
        for instance in joined.instances.iter().filter(|i| i.bond != Bond::Rooted) {
            let members = joined.of(instance);
            let first = row(ranks, &members[0]).end_ns();
            for member in &members[1..] {
                let end = row(ranks, member).end_ns();
                let key = (members[0].rank, member.rank);
                let (bond, differences) = pairs
                    .entry(key)
                    .or_insert_with(|| (Bond::Pair, Differences::default()));
                if *bond == Bond::Pair && instance.bond == Bond::Together {
                    *differences = Differences::default();
                    *bond = Bond::Together;
                }
                if *bond == instance.bond {
                    differences.push(end, first.saturating_sub(end));
                }
            }
        }
        let mut edges: Vec<_> = pairs.into_iter().collect();
        edges.sort_by_key(|(pair, (bond, differences))| {
            (*bond, usize::MAX - differences.seen, *pair)
        });
        let clocks = tree(ranks.len(), edges);
        let mut clocks = Clocks {
            parts: clocks.iter().map(|(_, part)| *part).collect(),
            clocks: clocks.into_iter().map(|(clock, _)| clock).collect(),
            error_ns: None,
        };
        clocks.judge(ranks, joined);
        clocks.find_buffered(ranks, joined);
        clocks
    }

    /// Marks sends that were complete before their receives began.
    fn find_buffered(&self, ranks: &[(u32, &Digest)], joined: &mut Joined) {
        for at in 0..joined.instances.len() {
            let instance = joined.instances[at];
            let members = joined.of(&instance);
            let [one, other] = members else { continue };
            let time = |m: &super::join::Member| {
                let row = row(ranks, m);
                let common = |ns| self.common_ns(m.rank, ns);
                (common(row.start_ns), common(row.end_ns()))
            };
            let (one, other) = (time(one), time(other));
            let is_apart = one.1 < other.0 || other.1 < one.0;
            if instance.bond == Bond::Pair && self.is_common(members) && is_apart {
                joined.instances[at].bond = Bond::Buffered;
            }
        }
    }

    /// Converts a time of a rank to the common time.
    pub fn common_ns(&self, rank: u32, time_ns: i64) -> i64 {
        let clock = &self.clocks[rank as usize];
        let since = time_ns.saturating_sub(clock.from_ns) as f64;
        time_ns
            .saturating_add(clock.offset_ns)
            .saturating_add((clock.slope * since) as i64)
    }

    /// Returns whether ranks have a common time.
    pub fn is_common(&self, members: &[super::join::Member]) -> bool {
        let part = |member: &super::join::Member| self.parts[member.rank as usize];
        members
            .iter()
            .all(|member| part(member) == part(&members[0]))
    }

    /// Measures how far apart the exchanges of each group end. The exchanges of a real group end together; those of a wrongly
    /// assumed group do not.
    fn judge(&mut self, ranks: &[(u32, &Digest)], joined: &mut Joined) {
        let mut apart: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for instance in joined.instances.iter().filter(|i| i.bond == Bond::Together) {
            let (apart_ns, length_ns) = self.apart(ranks, joined, instance);
            apart
                .entry(instance.group)
                .or_default()
                .push((apart_ns, length_ns));
        }
        let mut all = Vec::new();
        for (group, mut each) in apart {
            let at = each.len() / 2;
            let apart_ns = each.select_nth_unstable(at).1.0;
            let length_ns = each.select_nth_unstable_by_key(at, |one| one.1).1.1;
            let group = &mut joined.groups[group as usize];
            // A ring of thousands ends within microseconds. A join by sequence numbers is certain; if its clocks do not fit,
            // that has another cause.
            group.is_sound = group.is_numbered || apart_ns <= (length_ns / 5).max(20_000);
            if group.is_sound {
                all.push((apart_ns, each.len()));
            }
        }
        all.sort_unstable();
        let half = all.iter().map(|(_, count)| count).sum::<usize>() / 2;
        let mut seen = 0;
        let middle = all.iter().find(|(_, count)| {
            seen += count;
            seen > half
        });
        self.error_ns = middle.map(|(apart_ns, _)| *apart_ns);
    }

    /// Returns how far apart the ends of an exchange are, and how long its longest member is.
    fn apart(&self, ranks: &[(u32, &Digest)], joined: &Joined, instance: &Instance) -> (u64, u64) {
        let members = joined.of(instance);
        let ends = members
            .iter()
            .map(|m| self.common_ns(m.rank, row(ranks, m).end_ns()));
        let (least, most) = ends.fold((i64::MAX, i64::MIN), |(a, b), end| (a.min(end), b.max(end)));
        let lengths = members.iter().map(|m| row(ranks, m).duration_ns as u64);
        (most.abs_diff(least), lengths.max().unwrap_or(0))
    }
}

/// Returns the clocks along a tree of the best edges, with the number of each rank's tree.
fn tree(count: usize, edges: Vec<((u32, u32), (Bond, Differences))>) -> Vec<(Clock, u32)> {
    let mut parts: Vec<u32> = (0..count as u32).collect();
    let mut near: Vec<Vec<(u32, Clock, bool)>> = vec![Vec::new(); count];
    for ((a, b), (_, mut differences)) in edges {
        let (part_a, part_b) = (root(&mut parts, a), root(&mut parts, b));
        if part_a != part_b {
            parts[part_b as usize] = part_a;
            let clock = differences.clock();
            near[a as usize].push((b, clock, true));
            near[b as usize].push((a, clock, false));
        }
    }
    let none = Clock {
        offset_ns: 0,
        from_ns: 0,
        slope: 0.0,
    };
    let mut clocks: Vec<Option<(Clock, u32)>> = vec![None; count];
    for start in 0..count {
        if clocks[start].is_some() {
            continue;
        }
        clocks[start] = Some((none, start as u32));
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            let (own, _) = clocks[at].unwrap_or((none, 0));
            for (other, edge, is_forward) in &near[at] {
                if clocks[*other as usize].is_some() {
                    continue;
                }
                // The edge leads from the clock of its second rank to that of its first.
                let (offset_ns, from_ns, slope) = match is_forward {
                    true => (edge.offset_ns, edge.from_ns, edge.slope),
                    false => (
                        edge.offset_ns.saturating_neg(),
                        edge.from_ns.saturating_add(edge.offset_ns),
                        -edge.slope,
                    ),
                };
                let on_own = from_ns.saturating_add(offset_ns);
                let since = on_own.saturating_sub(own.from_ns) as f64;
                let clock = Clock {
                    offset_ns: offset_ns
                        .saturating_add(own.offset_ns)
                        .saturating_add((own.slope * since) as i64),
                    from_ns,
                    slope: slope + own.slope,
                };
                clocks[*other as usize] = Some((clock, start as u32));
                open.push(*other as usize);
            }
        }
    }
    clocks
        .into_iter()
        .map(|clock| clock.unwrap_or((none, 0)))
        .collect()
}

fn root(parts: &mut [u32], mut at: u32) -> u32 {
    while parts[at as usize] != at {
        parts[at as usize] = parts[parts[at as usize] as usize];
        at = parts[at as usize];
    }
    at
}
