//! Compares the reports of `sidestream diagnose` on runs of many ranks with what is known.

use std::fmt;

use sidestream_diagnose::{Limits, Options, Rank, Ranks, Report, Search, read_json};

use super::{Planted, RankJob, RankRun, rank_trace};
use crate::many::on_all_processors;

/// A rank that costs less than this part of a step need not be found.
const COSTS: f64 = 0.03;
/// The allowed error of waits.
const WAITS: f64 = 0.05;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct JudgedRanks {
    /// The run.
    pub job: RankJob,
    /// The cost of the fault, as a part of the step.
    pub costs: f64,
    /// The rank and the cause that were reported.
    pub said: Option<(u32, &'static str)>,
    /// Whether rank and cause are right; `None` where the fault costs too little to be found.
    pub is_right: Option<(bool, bool)>,
    /// The error of all waits, relative to their sum.
    pub waits_off: f64,
    /// The error of the predicted step.
    pub predicted_off: Option<f64>,
    /// The text of the report.
    pub words: String,
}

/// The results of many runs.
#[derive(Clone, Debug, Default)]
pub struct RankTally {
    /// Each result, by its seed.
    pub all: Vec<JudgedRanks>,
}

impl RankTally {
    /// Returns the seeds with a wrong result.
    pub fn wrong(&self) -> Vec<u64> {
        let wrong = self.all.iter().filter(|one| !one.is_well());
        wrong.map(|one| one.job.seed).collect()
    }
}

impl JudgedRanks {
    /// Returns whether rank, cause and waits are right.
    pub fn is_well(&self) -> bool {
        let right = self.is_right.is_none_or(|(rank, cause)| rank && cause);
        right && self.waits_off <= WAITS
    }
}

impl fmt::Display for RankTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.all;
        let looked: Vec<_> = all.iter().filter_map(|one| one.is_right).collect();
        let rank = looked.iter().filter(|one| one.0).count();
        let both = looked.iter().filter(|one| one.0 && one.1).count();
        let waits = all.iter().filter(|one| one.waits_off <= WAITS).count();
        let worst = all.iter().map(|one| one.waits_off).fold(0.0, f64::max);
        let off = all.iter().filter_map(|one| one.predicted_off);
        let mut off: Vec<f64> = off.map(f64::abs).collect();
        off.sort_by(f64::total_cmp);
        let (runs, looked) = (all.len(), looked.len());
        writeln!(f, "{runs} runs, {looked} of them with something to find")?;
        writeln!(f, "right rank {rank}, right rank and cause {both}")?;
        let (bound, worst) = (100.0 * WAITS, 100.0 * worst);
        writeln!(
            f,
            "waits within {bound:.0} % in {waits}, the worst {worst:.2} % off"
        )?;
        if let Some(last) = off.last() {
            let within = off.iter().filter(|off| **off <= 0.05).count();
            let (median, last, of) = (100.0 * off[off.len() / 2], 100.0 * last, off.len());
            write!(
                f,
                "predicted steps {median:.2} % off in the median, the worst {last:.1} %, "
            )?;
            writeln!(f, "within 5 % in {within} of {of}")?;
        }
        let worlds = all.iter().map(|one| one.job.world());
        let (ranks, most) = (worlds.clone().sum::<usize>(), worlds.max().unwrap_or(0));
        let wrong = self.wrong();
        writeln!(
            f,
            "{ranks} ranks, {most} in the largest run; wrong: {wrong:?}"
        )
    }
}

/// Judges `count` runs, starting with the seed `seed`.
///
/// # Errors
/// A trace cannot be read, or the traces yield no ranks.
pub fn many_ranks(count: u64, seed: u64) -> Result<RankTally, String> {
    let all = (0..count).map(|at| judged_ranks(seed.wrapping_add(at)));
    let all = all.collect::<Result<_, _>>()?;
    Ok(RankTally { all })
}

/// Draws a run, has its traces diagnosed on all CPU cores, and judges the report.
///
/// # Errors
/// A trace cannot be read, or the traces yield no ranks.
pub fn judged_ranks(seed: u64) -> Result<JudgedRanks, String> {
    let job = RankJob::drawn(seed);
    let run = RankRun::of(&job);
    let even = RankRun::of(&job.even());
    let costs = (run.step_ns - even.step_ns) / run.step_ns;
    let ranks = Ranks::of(ranks(&job, &run)?).ok_or_else(|| format!("seed {seed}: no ranks"))?;
    let slow = match &ranks.search {
        Search::Found(slow) => Some(slow),
        _ => None,
    };
    let said = slow.map(|slow| {
        let rank = ranks.ranks[slow.at].rank;
        (rank.unwrap_or(u32::MAX), slow.cause.as_str())
    });
    let is_right = match job.planted {
        Planted::Nothing => Some((said.is_none(), said.is_none())),
        _ if costs < COSTS => None,
        planted => Some((
            said.is_some_and(|said| said.0 as usize == job.slow),
            said.is_some_and(|said| said.1 == planted.as_str()),
        )),
    };
    let truth: f64 = run.waits_ns.iter().sum();
    let waits = run.waits_ns.iter().zip(&ranks.waits_ns);
    let off = waits.map(|(truth, said)| (truth - *said as f64).abs());
    Ok(JudgedRanks {
        costs,
        said,
        is_right,
        waits_off: off.sum::<f64>() / truth.max(1.0),
        predicted_off: slow.map(|slow| slow.step_ns.1 as f64 / even.step_ns - 1.0),
        words: sidestream_diagnose::ranks_text(&ranks),
        job,
    })
}

/// Returns the ranks of a run, from their traces.
fn ranks(job: &RankJob, run: &RankRun) -> Result<Vec<Rank>, String> {
    on_all_processors(job.world() as u64, |at| {
        let json = rank_trace(job, run, at as usize);
        let read = read_json(&json[..], &Limits::default());
        let read = read.map_err(|why| format!("seed {}: rank {at}: {why}", job.seed))?;
        let report = Report::of(read, &Options::default());
        Ok(Rank::of(&format!("rank{at}.json"), &report))
    })
}
