//! A histogram of durations in bounded memory.

use std::time::Duration;

/// A histogram of durations, with a relative resolution of one sixteenth.
///
/// Each power of two is divided into sixteen buckets of equal width, as in Gil Tene's HdrHistogram
/// (<https://hdrhistogram.org>).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    longest_ns: u64,
}

/// The base-two logarithm of the number of buckets in each power of two.
const BITS: u32 = 4;

impl Histogram {
    /// Adds a duration.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = bucket_of(ns);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.sum_ns).unwrap_or(u64::MAX))
    }

    /// Returns the longest duration.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns)
    }

    /// Returns the duration that this fraction of all did not exceed: 0.99 for the 99th percentile. Zero if there are
    /// none. The result is the upper end of a bucket, and so at most a sixteenth too long.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return Duration::from_nanos(upper_end(bucket).min(self.longest_ns));
            }
        }
        self.longest()
    }
}

fn bucket_of(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    let within = (ns >> power) as usize;
    // Below 32 ns each nanosecond has its own bucket.
    ((power as usize) << BITS) + within
}

fn upper_end(bucket: usize) -> u64 {
    let power = (bucket >> BITS).saturating_sub(1) as u32;
    let within = (bucket - ((power as usize) << BITS)) as u64;
    ((u128::from(within) + 1) << power)
        .saturating_sub(1)
        .try_into()
        .unwrap_or(u64::MAX)
}
