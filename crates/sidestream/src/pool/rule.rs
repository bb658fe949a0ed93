//! When a batch leaves, and which size it has. Pure: who asks says what time it is.

use std::time::Duration;

/// How requests become batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    sizes: Vec<usize>,
    max_delay: Duration,
}

/// What to do about the requests that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// A batch of so many of the oldest leaves.
    Now(usize),
    /// None leaves before this has passed, unless more come.
    In(Duration),
    /// There is none.
    Empty,
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

    /// What to do if so many wait, the oldest of them so long, and somebody is free to run them. When no more are to come, nobody waits for more.
    pub fn leave(&self, waiting: usize, oldest: Duration, are_more_to_come: bool) -> Leave {
        if waiting == 0 {
            return Leave::Empty;
        }
        let left = self.max_delay.saturating_sub(oldest);
        if waiting >= self.largest() || left.is_zero() || !are_more_to_come {
            return Leave::Now(waiting.min(self.largest()));
        }
        Leave::In(left)
    }
}
