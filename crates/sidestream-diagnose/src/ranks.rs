//! The traces of the ranks of one run, together: which is slow, and who waits for whom.
//!
//! Ranks that exchange data in each step all take the same time for it. The one that is late is
//! seen by its communication: the others are in the collective already and wait for it there, so
//! that it has the least time in collectives and they have the more.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::idle::Cause;
use crate::measure::{PerStep, quantile};
use crate::report::{Report, per_step_json, per_step_of_json};

/// The version of the JSON of ranks.
pub const RANKS_SCHEMA: &str = "sidestream.diagnose.ranks/1";

/// A rank is waited for if others spend this much of a step more in collectives.
const LATE: f64 = 0.05;

/// What one rank did in a step: all that is kept of its report.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// What its trace is called, such as the name of its file.
    pub title: String,
    /// Its number, where the trace states it.
    pub rank: Option<u32>,
    /// How many there are.
    pub world: Option<u32>,
    /// What its devices did in a step.
    pub per_step: PerStep,
    /// The idle time of a step by cause, in the mean.
    pub idle: BTreeMap<Cause, u64>,
}

impl Rank {
    /// What of a report is looked at together with the others.
    pub fn of(title: &str, report: &Report) -> Rank {
        Rank {
            title: title.to_owned(),
            rank: report.rank,
            world: report.world,
            per_step: report.per_step,
            idle: report.idle_per_step(),
        }
    }

    /// The rank as JSON, so that a report may be made in one process and looked at in another.
    pub fn json(&self) -> Value {
        let idle = self.idle.iter();
        let idle = idle.map(|(cause, ns)| (cause.as_str().to_owned(), (*ns).into()));
        json!({"rank": self.rank, "world": self.world, "file": self.title,
               "step": per_step_json(&self.per_step),
               "idle_by_cause": idle.collect::<Map<String, Value>>()})
    }

    /// The rank from its JSON; none if a part of it is missing. Causes of later versions are passed over.
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
            per_step: per_step_of_json(&value["step"])?,
            idle: Cause::ALL.iter().filter_map(cause).collect(),
        })
    }
}

/// The ranks of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranks {
    /// The ranks, by their numbers.
    pub ranks: Vec<Rank>,
    /// How many ran together, where the traces say it.
    pub world: Option<u32>,
    /// Which of `ranks` has the longest step.
    pub slowest: usize,
    /// How far the longest and the shortest step are apart, as a part of the median one.
    pub spread: f64,
    /// Which of `ranks` the others wait for, if they do.
    pub straggler: Option<usize>,
    /// Which wait for it, those that wait longest first.
    pub waiting: Vec<usize>,
    /// Numbers without a trace, as first and last of each stretch.
    pub missing: Vec<(u32, u32)>,
    /// Numbers with several traces.
    pub doubled: Vec<u32>,
    /// What a reader has to know.
    pub warnings: Vec<String>,
}

impl Ranks {
    /// Looks at ranks together; none if fewer than two of them state which of the same run they are.
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
        // A step of one cannot be held against the whole trace of another.
        if all.iter().any(|rank| rank.per_step.steps > 0) {
            let before = all.len();
            all.retain(|rank| rank.per_step.steps > 0);
            left_out(&all, before, "they have no steps");
        }
        if all.len() < 2 {
            return None;
        }
        all.sort_by_key(|rank| rank.rank);
        let times: Vec<u64> = all.iter().map(|rank| rank.per_step.time_ns).collect();
        let least_ns = times.iter().min()?;
        let slowest = (0..all.len()).max_by_key(|at| (times[*at], Reverse(*at)))?;
        let median_ns = quantile(&times, 1, 2)?.max(1);
        let mut ranks = Ranks {
            world,
            slowest,
            spread: (times[slowest] - least_ns) as f64 / median_ns as f64,
            straggler: None,
            waiting: Vec::new(),
            missing: Vec::new(),
            doubled: Vec::new(),
            warnings,
            ranks: all,
        };
        ranks.count();
        ranks.find_straggler(median_ns);
        Some(ranks)
    }

    /// How long a rank is in collectives beyond the one that is there shortest: it waits for that one.
    pub fn waits_ns(&self, at: usize) -> u64 {
        let of = |rank: &Rank| rank.per_step.communication_ns;
        let least_ns = self.ranks.iter().map(of).min().unwrap_or(0);
        of(&self.ranks[at]) - least_ns
    }

    /// The idle time by cause: in the mean of the ranks, with the rank that has most of it.
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
        causes.sort_by_key(|(cause, ns, _)| (Reverse(*ns), *cause));
        causes
    }

    /// Finds numbers that are missing or stand twice.
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
            let each = stretches.iter().map(|(from, to)| match from == to {
                true => from.to_string(),
                false => format!("{from} to {to}"),
            });
            each.collect::<Vec<_>>().join(", ")
        };
        if !self.missing.is_empty() {
            let missing = list(&self.missing);
            let text = format!("there is no trace of rank {missing}: what is slow may be there");
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

    fn find_straggler(&mut self, median_ns: u64) {
        let waits: Vec<u64> = (0..self.ranks.len()).map(|at| self.waits_ns(at)).collect();
        let longest_ns = waits.iter().copied().max().unwrap_or(0);
        if (longest_ns as f64) < LATE * median_ns as f64 {
            return;
        }
        self.straggler = waits.iter().position(|ns| *ns == 0);
        let waiting = (0..waits.len()).filter(|at| waits[*at] >= longest_ns / 2);
        self.waiting = waiting.collect();
        self.waiting.sort_by_key(|at| Reverse(waits[*at]));
    }

    /// The ranks as JSON; docs/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        let number = |at: usize| self.ranks[at].rank;
        let rank = |at: usize| {
            let mut rank = self.ranks[at].json();
            rank["waits_ns"] = self.waits_ns(at).into();
            rank
        };
        json!({
            "schema": RANKS_SCHEMA,
            "world": self.world,
            "ranks": (0..self.ranks.len()).map(rank).collect::<Vec<_>>(),
            "slowest": number(self.slowest),
            "spread": self.spread,
            "straggler": self.straggler.map(number),
            "waiting": self.waiting.iter().map(|at| number(*at)).collect::<Vec<_>>(),
            "missing": self.missing,
            "doubled": self.doubled,
            "warnings": self.warnings,
        })
    }
}
