//! When a batch leaves, which size it has, and when it would be over. Pure: who asks says what time it is.

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

    /// How long a request that came now would take: the batches before it, in turn through the slots, and its own, each as long as they took lately.
    ///
    /// Zero where none is before it: only a batch says what batches take now, and one that took long once must not have all refused for ever.
    pub fn expected(
        &self,
        waiting: usize,
        in_flight: usize,
        slots: usize,
        batch: Duration,
    ) -> Duration {
        let before = in_flight + waiting / self.largest();
        if before == 0 {
            return Duration::ZERO;
        }
        let rounds = before / slots.max(1) + 1;
        batch.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }
}

/// What batches took lately, from which follows when a request that came now would be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace {
    batch: Duration,
}

impl Pace {
    /// A batch took so long, from its leaving to its answers.
    pub fn note(&mut self, took: Duration) {
        self.batch = match self.batch {
            Duration::ZERO => took,
            // Of the last eight or so, since load changes.
            before => (before * 7 + took) / 8,
        };
    }

    /// How long a request would take behind so many that wait and so many batches that run: [`Rule::expected`].
    pub fn expected(
        &self,
        rule: &Rule,
        waiting: usize,
        in_flight: usize,
        slots: usize,
    ) -> Duration {
        rule.expected(waiting, in_flight, slots, self.batch)
    }
}
