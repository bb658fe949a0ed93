//! Estimates how much the profiler added, where a step was timed without it.
//!
//! The replay knows what a step takes if the profiler adds a given amount to each call. Conversely, a timed step shows that
//! amount, as far as the host determines the length of a step. The remainder is other variation of the same step: devices and
//! copies are faster in one minute than in another. Both are weighed by their usual variation. The remainder is assumed to be
//! spread evenly over a step, so that a change removes its share of it; the range covers the case that all of it lies in what
//! the change removes.

use super::calibrate::Share;
use crate::model::Unprofiled;

/// The tried costs of the profiler, in hundredths of the usual: up to ten times as much, as with stacks.
const TRIED: [u64; 11] = [10, 25, 50, 75, 100, 125, 175, 250, 400, 600, 1_000];
/// The usual deviation of that cost in most runs, as the natural logarithm of the ratio.
const USUALLY: f64 = 0.5;
/// The usual deviation of the speed of devices, likewise.
const ALIKE: f64 = 0.03;
/// Beyond this range, the timed steps are not comparable with the recorded ones.
const APART: (f64, f64) = (0.8, 1.1);

/// The amount to remove, and the time of a step without it: for the most, the usual and the least amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The share that the profiler adds.
    pub shares: [Share; 3],
    /// Factors by which the resulting time of a step is multiplied.
    factors: [f64; 3],
    /// Time of the unmodified step with the usual share, before its factor is applied.
    unmodified_ns: f64,
}

impl Default for Fit {
    /// Returns the fit where nothing was timed.
    fn default() -> Fit {
        Fit {
            shares: [Share::MOST, Share::USUAL, Share::LEAST],
            factors: [1.0; 3],
            unmodified_ns: 0.0,
        }
    }
}

impl Fit {
    /// Indices of the three shares.
    pub const MOST: usize = 0;
    pub const USUAL: usize = 1;
    pub const LEAST: usize = 2;

    /// Returns the fit that explains a timed step, given the time of a step for each share of the profiler; `None` if nothing
    /// explains it.
    pub fn to(measured: &Unprofiled, step_ns: impl Fn(Share) -> Option<u64>) -> Option<Fit> {
        let share = |percent| Share {
            percent,
            ..Share::USUAL
        };
        let tried = TRIED.map(|percent| step_ns(share(percent)).filter(|ns| *ns > 0));
        let target_ns = measured.median_ns as f64;
        let mut costs: Vec<(u64, f64)> = Vec::new();
        for (of, percents) in tried.windows(2).zip(TRIED.windows(2)) {
            let (less_ns, more_ns) = (of[0]? as f64, of[1]? as f64);
            for percent in percents[0]..=percents[1] {
                let way = (percent - percents[0]) as f64 / (percents[1] - percents[0]) as f64;
                let left = (target_ns / (less_ns + way * (more_ns - less_ns))).ln() / ALIKE;
                let unusual = (percent as f64 / 100.0).ln() / USUALLY;
                costs.push((percent, left * left + unusual * unusual));
            }
        }
        let (usual, least_cost) = costs.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let as_good = costs.iter().filter(|(_, cost)| *cost <= least_cost + 1.0);
        let most = as_good.clone().map(|(percent, _)| *percent).max()?;
        let least = as_good.map(|(percent, _)| *percent).min()?;
        let (low_ns, high_ns) = measured.between_ns();
        let shares = [most, usual, least].map(share);
        let mut factors = [1.0; 3];
        let targets_ns = [low_ns, measured.median_ns, high_ns];
        for (at, factor) in factors.iter_mut().enumerate() {
            *factor = targets_ns[at] as f64 / step_ns(shares[at])?.max(1) as f64;
        }
        let fit = Fit {
            shares,
            factors,
            unmodified_ns: step_ns(share(usual))? as f64,
        };
        let (slowest, fastest) = (APART.1, APART.0);
        (fastest..=slowest).contains(&fit.left()).then_some(fit)
    }

    /// Returns the remainder, as a factor.
    fn left(&self) -> f64 {
        self.factors[Fit::USUAL]
    }

    /// Returns the time of a step after a change, from its time in the replay.
    pub fn scaled(&self, at: usize, ns: u64) -> u64 {
        let (ns, left) = (ns as f64, self.left());
        // The remaining part of the step keeps its share of the remainder.
        let kept = (ns / self.unmodified_ns.max(1.0)).min(1.0);
        if at == Fit::USUAL {
            return (ns * left.powf(kept)) as u64;
        }
        let all = ns * self.factors[at];
        // All of the remainder may lie in the time that the change removes, but it cannot exceed that time.
        let elsewhere = ((1.0 - left) * ns)
            .abs()
            .min((self.unmodified_ns - ns).max(0.0));
        match (at, left < 1.0) {
            (Fit::LEAST, true) => (all + elsewhere) as u64,
            (Fit::MOST, false) => (all - elsewhere).max(0.0) as u64,
            _ => all as u64,
        }
    }
}
