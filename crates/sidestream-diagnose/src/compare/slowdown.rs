//! How much longer a step takes than in the baseline, with bounds.
//!
//! The estimate is the median of the ratios of all pairs of a step now and a step of the baseline, and the bounds are two of
//! these ratios: the estimator of Hodges and Lehmann (Annals of Mathematical Statistics 34, 1963) with the interval of the
//! rank-sum test. It assumes nothing about how times are distributed, so that a slow step now and then, or steps of two kinds,
//! affect it little. Three things that the test does not know are taken into account:
//!
//! - **Steps that resemble their neighbours** tell less than independent ones. The variance is multiplied by (1 + φ) / (1 - φ),
//!   where φ is the correlation of neighbouring steps, by rank and in both traces together (Bayley and Hammersley, Supplement
//!   to the Journal of the Royal Statistical Society 8, 1946), plus what it lacks in short series (Marriott and Pope,
//!   Biometrika 41, 1954). A φ within one standard deviation of none counts as none. Where so little is told that even the
//!   extreme ratio is no bound, its distance from the estimate is multiplied.
//! - **Two runs of one program differ** by more than the steps within each show: memory has other addresses, the clock another
//!   frequency (Kalibera and Jones, ISMM 2013). That adds [`BETWEEN_RUNS`], as an independent error.
//! - **The first steps** are left out as long as they are far slower than all of the second half.

use serde::Serialize;

use crate::sort::order_by;

/// Half the width of an interval, in standard deviations: each bound is beyond the truth once in 200.
const DEVIATIONS: f64 = 2.576;
/// The part of a step by which two runs of one program may differ.
const BETWEEN_RUNS: f64 = 0.0075;

/// The time of a step, divided by that of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// The estimate.
    pub ratio: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

impl Slowdown {
    /// Compares the times of steps, in the order in which they ran.
    ///
    /// # Errors
    /// Why there are no bounds, in a sentence.
    pub fn of(now: &[u64], baseline: &[u64]) -> Result<Slowdown, String> {
        let (now, baseline) = (warm(now), warm(baseline));
        let [few, other] = [now, baseline].map(<[u64]>::len);
        if apart(few, other, 1.0) > 1.0 {
            let enough = (1..).find(|steps| apart(*steps, *steps, 1.0) <= 1.0);
            return Err(format!(
                "{} steps now and {} in the baseline are too few to bound the slowdown; record at least {} of each, \
                 after the warm-up",
                few + 1,
                other + 1,
                enough.unwrap_or(0) + 1
            ));
        }
        let apart = apart(few, other, widened([now, baseline]));
        let sorted = |times: &[u64]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times
        };
        let (now, baseline) = (sorted(now), sorted(baseline));
        let pairs = now.len() as u64 * baseline.len() as u64;
        let at = |rank| ratio_at(&now, &baseline, rank);
        let ratio = (at((pairs - 1) / 2) + at(pairs / 2)) / 2.0;
        let below = ((1.0 - apart) * pairs as f64 / 2.0).max(0.0) as u64;
        let (low, high) = (at(below), at(pairs - 1 - below));
        if !high.is_finite() {
            return Err("steps of the baseline took no time; record it again".to_owned());
        }
        let wide = |bound: f64| {
            let by_steps = (ratio - bound) * apart.max(1.0).powi(2);
            by_steps.hypot(BETWEEN_RUNS * ratio)
        };
        Ok(Slowdown {
            ratio,
            low: (ratio - wide(low)).max(0.0),
            high: ratio + wide(high),
        })
    }
}

/// Returns the steps without the warm-up: the first ones, as long as they are slower than all of the second half by more than
/// these differ.
fn warm(times: &[u64]) -> &[u64] {
    let (first, second) = times.split_at(times.len() / 2);
    let (least, most) = (second.iter().min(), second.iter().max());
    let (Some(least), Some(most)) = (least, most) else {
        return times;
    };
    let slow = first
        .iter()
        .take_while(|time| time.saturating_sub(*most) > most - least);
    &times[slow.count()..]
}

/// Returns how far the bounds are from the median among the sorted ratios: 1 is the extreme ratio, and more is beyond it.
fn apart(now: usize, baseline: usize, widened: f64) -> f64 {
    let (now, baseline) = (now as f64, baseline as f64);
    let pairs = now * baseline;
    let deviation = (widened * pairs * (now + baseline + 1.0) / 12.0).sqrt();
    (DEVIATIONS * deviation + 0.5) / (pairs / 2.0)
}

/// Returns the ratio at a rank, from 0, among those of all pairs of sorted times. The pairs may be too many to be listed, so
/// their number up to a ratio is counted instead.
fn ratio_at(now: &[u64], baseline: &[u64], rank: u64) -> f64 {
    let is_reached = |ratio: f64| {
        let mut upto = 0;
        let mut count = 0;
        for base in baseline {
            upto += now[upto..].partition_point(|time| *time as f64 <= ratio * *base as f64);
            count += upto as u64;
        }
        count > rank
    };
    let most = now.last().copied().unwrap_or(0) as f64;
    let (mut low, mut high) = (0.0, most.max(1.0));
    if !is_reached(high) {
        return f64::INFINITY;
    }
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return high;
        }
        if is_reached(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
}

/// Returns the factor by which the likeness of neighbouring steps increases the variance.
fn widened(both: [&[u64]; 2]) -> f64 {
    let steps: f64 = both.iter().map(|times| times.len() as f64).sum();
    let (mut shared, mut own) = (0.0, 0.0);
    for ranks in both.map(centred_ranks) {
        shared += ranks.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        own += ranks.iter().map(|rank| rank * rank).sum::<f64>();
    }
    let found = if own > 0.0 { shared / own } else { 0.0 };
    let likeness = found + (1.0 + 3.0 * found) / (steps / 2.0).max(1.0);
    if likeness * steps.sqrt() < 1.0 {
        return 1.0;
    }
    let likeness = likeness.min(1.0 - 1.0 / steps);
    (1.0 + likeness) / (1.0 - likeness)
}

/// Returns the ranks of times, less the mean rank; equal times have equal ranks.
fn centred_ranks(times: &[u64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..times.len()).collect();
    order_by(&mut order, |at| times[*at]);
    let mut ranks = vec![0.0; times.len()];
    let mut first = 0;
    for alike in order.chunk_by(|a, b| times[*a] == times[*b]) {
        let rank = first as f64 + (alike.len() as f64 - times.len() as f64) / 2.0;
        alike.iter().for_each(|at| ranks[*at] = rank);
        first += alike.len();
    }
    ranks
}
