//! Which sizes batches have, and for how long the oldest request waits for others.

use std::time::Duration;

/// How requests become batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    sizes: Vec<usize>,
    max_delay: Duration,
}

impl Rule {
    /// Batches have these sizes, sorted and each once; none is zero, and there is at least one.
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

    /// The most requests that one batch takes.
    pub fn largest(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// All sizes, the smallest first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The smallest size that holds so many requests.
    pub fn size_of(&self, requests: usize) -> usize {
        let at = self.sizes.partition_point(|size| *size < requests);
        self.sizes.get(at).copied().unwrap_or(self.largest())
    }

    /// For how long the oldest request waits for others.
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }
}
