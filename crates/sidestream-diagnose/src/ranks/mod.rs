//! Analyzes the traces of the ranks of one run together: which rank is slow, and which waits for which.
//!
//! Each rank contributes a [`Digest`] of its exchanges with others. [`join`] finds which belong together, [`clocks`] aligns
//! their times, [`waits`] measures the waiting times, and [`slow`] replays the run to find the rank that all others ultimately
//! wait for.

mod clocks;
mod join;
mod rerun;
mod slow;
mod waits;

pub use slow::{Search, Slow};
pub use waits::{Heat, Worst};

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::findings::time;
use crate::idle::Cause;
use crate::measure::{PerStep, quantile};
use crate::report::Report;
use crate::sort::order_by;
use clocks::Clocks;
use join::{Bond, Joined};
use rerun::Rerun;
use waits::Waits;

/// The version of the JSON of ranks.
pub const RANKS_SCHEMA: &str = "sidestream.diagnose.ranks/2";

/// Ranks that wait for at least this part of a step are named.
const NAMED: f64 = 0.02;

/// The steps of one rank: the part of its report that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// Title of its trace, such as the name of its file.
    pub title: String,
    /// Its rank number, where the trace states it.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub world: Option<u32>,
    /// Activity of its devices in a step.
    pub per_step: PerStep,
    /// Mean idle time of a step by cause.
    pub idle: BTreeMap<Cause, u64>,
    /// Its exchanges with others.
    pub digest: Digest,
}

impl Rank {
    /// Returns the part of a report that is analyzed together with the others.
    pub fn of(title: &str, report: &Report) -> Rank {
        Rank {
            title: title.to_owned(),
            rank: report.rank,
            world: report.world,
            per_step: report.per_step,
            idle: report.idle_per_step(),
            digest: report.digest.clone(),
        }
    }

    /// Returns the rank as JSON, so that a report may be made in one process and analyzed in another.
    pub fn whole_json(&self) -> Value {
        let mut whole = self.json();
        whole["digest"] = self.digest.json();
        whole
    }

    /// Returns the rank as JSON, without its exchanges.
    fn json(&self) -> Value {
        json!({"rank": self.rank, "world": self.world, "file": self.title,
               "step": self.per_step,
               "idle_by_cause": self.idle})
    }

    /// Reads the rank from its whole JSON; returns `None` if a part of it is missing. Causes of later versions are skipped.
    pub fn of_json(value: &Value) -> Option<Rank> {
        let number = |name: &str| match &value[name] {
            Value::Null => Some(None),
            number => Some(Some(u32::try_from(number.as_u64()?).ok()?)),
        };
        let idle = value["idle_by_cause"].as_object()?;
        let cause = |cause: &Cause| Some((*cause, idle.get(cause.as_str())?.as_u64()?));
        Some(Rank {
            title: value["file"].as_str()?.to_owned(),
            rank: number("rank")?,
            world: number("world")?,
            per_step: PerStep::deserialize(&value["step"]).ok()?,
            idle: Cause::ALL.iter().filter_map(cause).collect(),
            digest: Digest::of_json(&value["digest"])?,
        })
    }
}

/// The process groups of one description and size, such as all tensor-parallel groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// Their description, where they have one.
    pub name: String,
    /// Whether the traces state the groups of their exchanges.
    pub is_known: bool,
    /// Number of groups.
    pub count: usize,
    /// Number of ranks in each, where that is known.
    pub size: Option<usize>,
    /// Number of their ranks that have no trace.
    pub missing: usize,
    /// Number of exchanges that were joined.
    pub exchanges: u64,
    /// Whether they were joined by their sequence numbers.
    pub is_numbered: bool,
    /// Mean time that a rank waited in these groups in a step.
    pub waits_ns: u64,
    /// The rank that waited most in a step, and its time.
    pub most: (usize, u64),
    /// The rank that was waited for most in a step, and that time.
    pub last: (usize, u64),
}

/// The ranks of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranks {
    /// The ranks, by their numbers.
    pub ranks: Vec<Rank>,
    /// Number of ranks that ran together, where the traces state it.
    pub world: Option<u32>,
    /// Index in `ranks` of the rank with the longest step.
    pub slowest: usize,
    /// Difference between the longest and the shortest step, relative to the median one.
    pub spread: f64,
    /// Whether a rank is slow, which one, and why.
    pub search: Search,
    /// Indices in `ranks` of the ranks that wait for others, the longest wait first.
    pub waiting: Vec<usize>,
    /// Time that each rank waits for others in a step, in exchanges of data.
    pub waits_ns: Vec<u64>,
    /// Time that each rank is waited for in a step, by the rank that waits longest each time.
    pub late_ns: Vec<u64>,
    /// Time that each rank waits in sends and receives in a step.
    pub pairs_ns: Vec<u64>,
    /// The process groups.
    pub groups: Vec<Groups>,
    /// The exchanges with the longest waits, with the names of their groups.
    pub worst: Vec<(Worst, String)>,
    /// Waiting time of each rank in each exchange.
    pub heat: Heat,
    /// Median distance between the ends of a collective once the clocks are aligned.
    pub clock_error_ns: Option<u64>,
    /// Rank numbers without a trace, as the first and last of each range.
    pub missing: Vec<(u32, u32)>,
    /// Rank numbers with several traces.
    pub doubled: Vec<u32>,
    /// Warnings that affect the results.
    pub warnings: Vec<String>,
}

impl Ranks {
    /// Analyzes ranks together; returns `None` if fewer than two of them state their rank in the same run.
    pub fn of(mut all: Vec<Rank>) -> Option<Ranks> {
        let count = all.len();
        let mut warnings = Vec::new();
        let mut left_out = |all: &[Rank], before: usize, why: &str| {
            let left_out = before - all.len();
            if left_out > 0 {
                warnings.push(format!("{left_out} of {count} traces are left out: {why}"));
            }
        };
        all.retain(|rank| rank.rank.is_some());
        left_out(&all, count, "they state no rank");
        // Of several runs, the one with the most traces.
        let mut worlds: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for rank in &all {
            *worlds.entry(rank.world).or_default() += 1;
        }
        let world = *worlds.iter().max_by_key(|(_, ranks)| **ranks)?.0;
        let before = all.len();
        all.retain(|rank| rank.world == world);
        left_out(
            &all,
            before,
            "they are of a run with another number of ranks",
        );
        // A step of one trace cannot be compared with the whole of another.
        if all.iter().any(|rank| rank.per_step.steps > 0) {
            let before = all.len();
            all.retain(|rank| rank.per_step.steps > 0);
            left_out(&all, before, "they have no steps");
        }
        if all.len() < 2 {
            return None;
        }
        order_by(&mut all, |rank| rank.rank);
        let times: Vec<u64> = all.iter().map(|rank| rank.per_step.time_ns).collect();
        let least_ns = times.iter().min()?;
        let slowest = (0..all.len()).max_by_key(|at| (times[*at], Reverse(*at)))?;
        let median_ns = quantile(&times, 1, 2)?.max(1);
        let mut ranks = Ranks {
            world,
            slowest,
            spread: (times[slowest] - least_ns) as f64 / median_ns as f64,
            search: Search::Nobody,
            waiting: Vec::new(),
            waits_ns: Vec::new(),
            late_ns: Vec::new(),
            pairs_ns: Vec::new(),
            groups: Vec::new(),
            worst: Vec::new(),
            heat: Heat::default(),
            clock_error_ns: None,
            missing: Vec::new(),
            doubled: Vec::new(),
            warnings,
            ranks: all,
        };
        ranks.count();
        ranks.join(median_ns);
        Some(ranks)
    }

    /// Returns the number of a rank, by its index.
    pub fn number(&self, at: usize) -> u32 {
        self.ranks[at].rank.unwrap_or(0)
    }

    /// Returns the idle time by cause: the mean of the ranks, with the rank that has most of it.
    pub fn idle(&self) -> Vec<(Cause, u64, usize)> {
        let mut causes: BTreeMap<Cause, (u64, usize)> = BTreeMap::new();
        let of = |at: usize, cause| self.ranks[at].idle.get(&cause).copied().unwrap_or(0);
        for (at, rank) in self.ranks.iter().enumerate() {
            for (cause, ns) in &rank.idle {
                let (sum, most) = causes.entry(*cause).or_insert((0, at));
                *sum = sum.saturating_add(*ns);
                if of(*most, *cause) < *ns {
                    *most = at;
                }
            }
        }
        let count = self.ranks.len().max(1) as u64;
        let mean = |(cause, (sum, most))| (cause, sum / count, most);
        let mut causes: Vec<_> = causes.into_iter().map(mean).collect();
        order_by(&mut causes, |(cause, ns, _)| (Reverse(*ns), *cause));
        causes
    }

    /// Finds rank numbers that are missing or appear twice.
    fn count(&mut self) {
        let mut next = 0;
        for rank in self.ranks.iter().filter_map(|rank| rank.rank) {
            if rank < next {
                self.doubled.push(rank);
            } else if rank > next {
                self.missing.push((next, rank - 1));
            }
            next = rank.saturating_add(1);
        }
        self.doubled.dedup();
        if let Some(last) = self.world.and_then(|world| world.checked_sub(1))
            && next <= last
        {
            self.missing.push((next, last));
        }
        let list = |stretches: &[(u32, u32)]| {
            let each = stretches.iter().map(|(from, to)| {
                if from == to {
                    from.to_string()
                } else {
                    format!("{from} to {to}")
                }
            });
            each.collect::<Vec<_>>().join(", ")
        };
        if !self.missing.is_empty() {
            let missing = list(&self.missing);
            let text = format!("there is no trace of rank {missing}: the slow rank may be missing");
            self.warnings.push(text);
        }
        if !self.doubled.is_empty() {
            let doubled: Vec<_> = self.doubled.iter().map(|rank| (*rank, *rank)).collect();
            let text = format!(
                "there are several traces of rank {}: name those of one run and one time only",
                list(&doubled)
            );
            self.warnings.push(text);
        }
    }

    /// Joins the exchanges of the ranks.
    fn join(&mut self, median_ns: u64) {
        let ranks = std::mem::take(&mut self.ranks);
        let digests: Vec<(u32, &Digest)> = ranks
            .iter()
            .map(|rank| (rank.rank.unwrap_or(u32::MAX), &rank.digest))
            .collect();
        // Several traces of one rank cannot be distinguished as members of a group.
        let joined = if self.doubled.is_empty() {
            join::join(&digests)
        } else {
            Joined::default()
        };
        let mut joined = joined;
        let clocks = Clocks::of(&digests, &mut joined);
        let waits = Waits::of(&digests, &joined, &clocks);
        self.clock_error_ns = clocks.error_ns;
        self.doubts(&joined, &clocks, &digests);
        self.groups = groups(&joined, &waits);
        let is_any = joined
            .groups
            .iter()
            .zip(&waits.groups)
            .any(|(g, w)| g.is_sound && w.exchanges > 0);
        self.search = if is_any {
            joined
                .instances
                .retain(|i| joined.groups[i.group as usize].is_sound);
            let rerun = Rerun::of(&digests, &joined, &clocks);
            slow::search(&digests, &rerun, &waits.late_ns, mean_step(&digests))
        } else {
            Search::Unknown(
                "no exchange of one rank could be joined with that of another, so no rank is reported as late".to_owned(),
            )
        };
        let name = |worst: &Worst| title(&joined.groups[worst.group]);
        self.worst = waits
            .worst
            .iter()
            .map(|worst| (worst.clone(), name(worst)))
            .collect();
        self.heat = waits.heat;
        self.late_ns = waits.late_ns;
        self.pairs_ns = waits.pairs_ns;
        let longest_ns = waits.waits_ns.iter().copied().max().unwrap_or(0);
        if longest_ns as f64 >= NAMED * median_ns as f64 {
            let all = (0..ranks.len()).filter(|at| waits.waits_ns[*at] >= longest_ns / 2);
            self.waiting = all.collect();
            order_by(&mut self.waiting, |at| (Reverse(waits.waits_ns[*at]), *at));
        }
        self.waits_ns = waits.waits_ns;
        self.ranks = ranks;
    }

    /// Adds warnings about the exchanges that are not known.
    fn doubts(&mut self, joined: &Joined, clocks: &Clocks, digests: &[(u32, &Digest)]) {
        let mut say = |text: String| self.warnings.push(text);
        if !self.doubled.is_empty() {
            say(
                "what the ranks exchanged was not joined, since some ranks have several traces"
                    .to_owned(),
            );
            return;
        }
        if joined.rows == 0 {
            say("the traces show no exchange of data between ranks".to_owned());
            return;
        }
        let share = |count: u64| 100.0 * count as f64 / joined.rows as f64;
        if joined.alone > 0 {
            say(format!(
                "{} of {} exchanges ({:.1} %) have no counterpart in the other traces and are left out",
                joined.alone,
                joined.rows,
                share(joined.alone)
            ));
        }
        if joined.unpaired > 0 {
            say(format!(
                "{} of {} exchanges ({:.1} %) do not state their process group, such as those that were enqueued before a trace begins, and are left out",
                joined.unpaired,
                joined.rows,
                share(joined.unpaired)
            ));
        }
        let unsound = joined.groups.iter().filter(|g| !g.is_sound);
        let unknown = unsound.clone().filter(|g| g.name.is_empty()).count();
        if unknown > 0 {
            say("the traces do not say which ranks exchange data with each other, and the ends of the exchanges do not fit one group of all ranks, so it is not known which rank waits for which in them".to_owned());
        }
        let known = unsound.count() - unknown;
        if known > 0 {
            say(format!(
                "in {known} groups, exchanges that were joined by their order do not end together; they are left out"
            ));
        }
        let used = |g: &&join::Group| g.is_sound && g.members.len() > 1;
        let nameless = joined.groups.iter().filter(used).any(|g| g.name.is_empty());
        if nameless {
            say("the traces do not say which ranks exchange data with each other: all are taken for one group, since the exchanges end together".to_owned());
        }
        let missing = joined
            .groups
            .iter()
            .filter(used)
            .filter(|g| g.missing() > 0)
            .count();
        if missing > 0 {
            say(format!(
                "{missing} process groups have ranks without a trace: the last rank to arrive may be one of those, and waits are at least as long as stated"
            ));
        }
        let cut = digests.iter().filter(|(_, digest)| digest.is_cut).count();
        if cut > 0 {
            say(format!(
                "{cut} of the traces are incomplete: exchanges after their ends are missing"
            ));
        }
        let mut parts: Vec<u32> = clocks.parts.clone();
        parts.sort_unstable();
        parts.dedup();
        if parts.len() > 1 && self.ranks.len() != parts.len() {
            say(format!(
                "the clocks of the ranks could be aligned within {} sets of ranks only, between which nothing was joined",
                parts.len()
            ));
        }
        if let Some(error_ns) = clocks.error_ns.filter(|ns| *ns > 100_000) {
            say(format!(
                "the clocks of the ranks do not fit well: the ends of a collective are {} apart in the median",
                time(error_ns)
            ));
        }
        let rooted = joined.instances.iter().filter(|i| i.bond == Bond::Rooted);
        let unclear = rooted.filter(|i| !clocks.is_common(joined.of(i))).count();
        if unclear > 0 {
            say(format!(
                "{unclear} broadcasts and similar exchanges are left out, since the clocks of their ranks could not be aligned"
            ));
        }
    }

    /// Returns the rank that is slow, if one is.
    pub fn slow(&self) -> Option<&Slow> {
        match &self.search {
            Search::Found(slow) => Some(slow),
            Search::Nobody | Search::Unknown(_) => None,
        }
    }

    /// Returns the ranks as JSON; docs/guide/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        let number = |at: usize| self.ranks[at].rank;
        let rank = |at: usize| {
            let mut rank = self.ranks[at].json();
            rank["waits_ns"] = self.waits_ns[at].into();
            rank["late_ns"] = self.late_ns[at].into();
            rank["pairs_ns"] = self.pairs_ns[at].into();
            rank["parts"] = self.ranks[at].digest.parts.json();
            rank
        };
        let slow = self.slow().map(|slow| {
            json!({
                "rank": number(slow.at),
                "cause": slow.cause,
                "cause_ns": slow.cause_ns,
                "name": slow.name,
                "excess_ns": slow.excess_ns,
                "compared": slow.compared,
                "is_alike": slow.is_alike,
                "slowed_ns": slow.slowed_ns,
                "step_ns": slow.step_ns.0,
                "predicted_ns": slow.step_ns.1,
            })
        });
        let group = |g: &Groups| {
            json!({"name": g.name, "is_known": g.is_known, "count": g.count, "size": g.size, "missing": g.missing,
                   "exchanges": g.exchanges, "is_numbered": g.is_numbered, "waits_ns": g.waits_ns,
                   "most": number(g.most.0), "most_ns": g.most.1, "last": number(g.last.0), "last_ns": g.last.1})
        };
        let worst = |(w, name): &(Worst, String)| {
            json!({"operation": w.operation, "group": name, "seq": w.seq, "elements": w.elements,
                   "last": number(w.last), "waited": number(w.waited.0), "waited_ns": w.waited.1,
                   "all_ns": w.all_ns, "offset_ns": w.offset_ns})
        };
        json!({
            "schema": RANKS_SCHEMA,
            "world": self.world,
            "ranks": (0..self.ranks.len()).map(rank).collect::<Vec<_>>(),
            "slowest": number(self.slowest),
            "spread": self.spread,
            "straggler": self.slow().map(|slow| number(slow.at)),
            "slow": slow,
            "waiting": self.waiting.iter().map(|at| number(*at)).collect::<Vec<_>>(),
            "groups": self.groups.iter().map(group).collect::<Vec<_>>(),
            "worst": self.worst.iter().map(worst).collect::<Vec<_>>(),
            "clock_error_ns": self.clock_error_ns,
            "missing": self.missing,
            "doubled": self.doubled,
            "warnings": self.warnings,
        })
    }
}

/// Returns the mean time of a step, as the median over the ranks.
fn mean_step(digests: &[(u32, &Digest)]) -> u64 {
    let shortest = digests
        .iter()
        .map(|(_, digest)| digest.ends_ns.len())
        .min()
        .unwrap_or(0);
    let times = digests.iter().filter_map(|(_, digest)| match shortest {
        0 | 1 => {
            let end = digest.rows.iter().map(|row| row.end_ns()).max()?;
            Some(end.abs_diff(digest.rows.first()?.start_ns))
        }
        count => Some(digest.ends_ns[count - 1].abs_diff(digest.ends_ns[0]) / (count as u64 - 1)),
    });
    quantile(&times.collect::<Vec<_>>(), 1, 2).unwrap_or(0)
}

/// Returns the title of a group.
fn title(group: &join::Group) -> String {
    let unnamed = matches!(&*group.description, "" | "undefined");
    match (unnamed, group.name.is_empty()) {
        (false, _) => group.description.clone(),
        (true, false) => format!("group {}", group.name),
        (true, true) => "all ranks".to_owned(),
    }
}

/// Returns the groups by description and size, with the waiting times in them.
fn groups(joined: &Joined, waits: &Waits) -> Vec<Groups> {
    let mut all: BTreeMap<(String, Option<usize>), (Groups, u64, u64)> = BTreeMap::new();
    for (group, waits) in joined.groups.iter().zip(&waits.groups) {
        if !group.is_sound || waits.exchanges == 0 {
            continue;
        }
        let is_undescribed =
            !group.name.is_empty() && matches!(&*group.description, "" | "undefined");
        let name = if is_undescribed {
            "groups without a description".to_owned()
        } else {
            title(group)
        };
        let key = (name.clone(), group.size);
        let (sum, all_ns, members) = all.entry(key).or_insert_with(|| {
            let none = Groups {
                name,
                is_known: !group.name.is_empty(),
                count: 0,
                size: group.size,
                missing: 0,
                exchanges: 0,
                is_numbered: true,
                waits_ns: 0,
                most: waits.most,
                last: waits.last,
            };
            (none, 0, 0)
        });
        sum.count += 1;
        sum.missing += group.missing();
        sum.exchanges += waits.exchanges;
        sum.is_numbered &= group.is_numbered;
        *all_ns = all_ns.saturating_add(waits.all_ns);
        *members += group.members.len() as u64;
        if waits.most.1 > sum.most.1 {
            sum.most = waits.most;
        }
        if waits.last.1 > sum.last.1 {
            sum.last = waits.last;
        }
        sum.waits_ns = *all_ns / (*members).max(1);
    }
    let mut all: Vec<Groups> = all.into_values().map(|(groups, ..)| groups).collect();
    order_by(&mut all, |groups| Reverse(groups.waits_ns));
    all
}
