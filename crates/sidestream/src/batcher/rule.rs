//! The sizes of batches, and how long the oldest request waits for others.

use std::time::Duration;

/// The rule by which requests are combined into batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    sizes: Vec<usize>,
    max_delay: Duration,
}

impl Rule {
    /// Returns a rule with these sizes, which are sorted and deduplicated; there must be at least one, and none may be zero.
    pub fn new(sizes: &[usize], max_delay: Duration) -> Result<Rule, String> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes.first() {
            None => Err("a batch needs at least one size".to_owned()),
            Some(0) => Err("a batch of 0 rows computes nothing; leave out the size 0".to_owned()),
            Some(_) => Ok(Rule { sizes, max_delay }),
        }
    }

    /// Returns the largest number of requests in one batch.
    pub fn largest(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Returns all sizes, the smallest first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the smallest size for this many requests.
    pub fn size_of(&self, requests: usize) -> usize {
        let at = self.sizes.partition_point(|size| *size < requests);
        self.sizes.get(at).copied().unwrap_or(self.largest())
    }

    /// Returns how long the oldest request waits for others.
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }
}
