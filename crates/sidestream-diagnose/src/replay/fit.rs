//! How much the profiler added, where a step was timed without it.
//!
//! The replay knows what a step takes if the profiler adds so much to each call. The other way round, a step that was timed says how much
//! that was, as far as the host decides how long a step takes. What that leaves over is other time of the same step: devices and copies are
//! faster in one minute than in another. How the two share is weighed by what is usual of each. What is left over is taken to lie in all
//! parts of a step alike, so that a change takes its share of it away; the range holds that all of it lies in what the change takes away.

use super::calibrate::Share;
use crate::model::Unprofiled;

/// What the profiler may add, in hundredths of the usual: up to ten times as much, as with stacks.
const TRIED: [u64; 11] = [10, 25, 50, 75, 100, 125, 175, 250, 400, 600, 1_000];
/// So far it is from the usual in most runs, as a part of it: that of its logarithm.
const USUALLY: f64 = 0.5;
/// And so much faster or slower are devices in most.
const ALIKE: f64 = 0.03;
/// Beyond, the steps that were timed are others than those that were recorded.
const APART: (f64, f64) = (0.8, 1.1);

/// What is to be taken out, and what a step takes then: where it is the most, the usual and the least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// What the profiler adds.
    pub shares: [Share; 3],
    /// What a step takes then is multiplied by this.
    factors: [f64; 3],
    /// The step as it is, with the usual, before it is multiplied.
    unmodified_ns: f64,
}

impl Default for Fit {
    /// Nothing was timed.
    fn default() -> Fit {
        Fit {
            shares: [Share::MOST, Share::USUAL, Share::LEAST],
            factors: [1.0; 3],
            unmodified_ns: 0.0,
        }
    }
}

impl Fit {
    /// The places of the three.
    pub const MOST: usize = 0;
    pub const USUAL: usize = 1;
    pub const LEAST: usize = 2;

    /// What explains a step that was timed, by what a step takes if the profiler adds so much; none if nothing does.
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

    /// What is left over, as a factor.
    fn left(&self) -> f64 {
        self.factors[Fit::USUAL]
    }

    /// What a step takes after a change, from what it takes in the replay.
    pub fn scaled(&self, at: usize, ns: u64) -> u64 {
        let (ns, left) = (ns as f64, self.left());
        // It has a part in what is left over, as large as its part in the step.
        let kept = (ns / self.unmodified_ns.max(1.0)).min(1.0);
        if at == Fit::USUAL {
            return (ns * left.powf(kept)) as u64;
        }
        let all = ns * self.factors[at];
        // All that is left over may lie in what the change takes away, but not more than there is.
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
