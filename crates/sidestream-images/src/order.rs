//! The order of the samples of an epoch, and their division among the ranks.
//!
//! The order is a permutation that is computed one place at a time: nothing is shuffled, stored or sorted, so an
//! epoch begins at once, and a run resumes at any place at no cost, however large the data set is.
//!
//! The permutation is a Feistel network over the next even number of bits, walked until the result is a sample ("cycle
//! walking"; Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002). Each round swaps the halves of a number
//! and adds a function of one half to the other. A round can be inverted for any function, so the network is a
//! permutation of the numbers. Repeating it from a sample until the next sample is a permutation of the samples: the
//! path from a sample is part of a cycle that leads back to it, so it meets a sample, and no two paths end at the same
//! one. At most three of four numbers are not samples, so a path takes four steps on average; a small set has 256
//! numbers, so that all orders are possible.

use sidestream::sim::split_mix;

use crate::{Error, Result};

/// Orders the samples of an epoch and divides them among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Number of samples in the data set.
    pub samples: u64,
    /// Seed of the permutations, together with the number of the epoch.
    pub seed: u64,
    /// Whether the samples are permuted.
    pub shuffle: bool,
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks that share the samples.
    pub world: u32,
    /// What to do if the samples cannot be divided evenly.
    pub uneven: Uneven,
}

/// What happens to the last samples of an epoch if their number is not a multiple of the number of ranks. All ranks get
/// the same number in any case: a rank with one more would wait forever in its collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Uneven {
    /// The last samples are dropped. With `shuffle`, each epoch drops different ones.
    #[default]
    Drop,
    /// The first samples of the epoch are repeated.
    Repeat,
}

const ROUNDS: u64 = 8;

impl Order {
    /// Returns this order if it is valid.
    ///
    /// # Errors
    /// [`Error::Options`] if there is no such rank, or a rank would have no samples.
    pub fn checked(self) -> Result<Order> {
        let Order {
            samples,
            rank,
            world,
            ..
        } = self;
        let why = if world == 0 {
            "`world` is 0; give the number of ranks that share the data, at least 1".into()
        } else if rank >= world {
            format!(
                "`rank` is {rank} and `world` is {world}; ranks count from 0 to {}",
                world - 1
            )
        } else if self.is_empty() {
            format!(
                "{samples} samples are too few for {world} ranks; repeat samples, or use fewer ranks"
            )
        } else {
            return Ok(self);
        };
        Err(Error::Options(why))
    }

    /// Returns the number of samples of a rank in an epoch, which is equal for all ranks.
    pub fn len(&self) -> u64 {
        let world = u64::from(self.world);
        match self.uneven {
            Uneven::Drop => self.samples / world,
            Uneven::Repeat => self.samples.div_ceil(world),
        }
    }

    /// Returns whether a rank has no samples, which [`Order::checked`] refuses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample at a place of this rank's part of an epoch. The places of the ranks alternate: the first
    /// places of all ranks are the first samples of the epoch.
    ///
    /// # Panics
    /// If `place` is not below [`Order::len`].
    #[track_caller]
    pub fn sample(&self, epoch: u64, place: u64) -> u64 {
        assert!(place < self.len(), "place {place} of {}", self.len());
        let place = place * u64::from(self.world) + u64::from(self.rank);
        let place = place % self.samples;
        if self.shuffle {
            permuted(place, self.samples, mixed(self.seed ^ mixed(epoch)))
        } else {
            place
        }
    }
}

/// Returns the image of a place below `many` under the permutation that `key` selects.
fn permuted(place: u64, many: u64, key: u64) -> u64 {
    let bits = (u64::BITS - (many - 1).leading_zeros()).max(8);
    let half = bits.div_ceil(2);
    let mask = (1 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..ROUNDS {
            let drawn = mixed(key ^ mixed(right ^ (round << 56)));
            (left, right) = (right, (left ^ drawn) & mask);
        }
        at = left << half | right;
        if at < many {
            return at;
        }
    }
}

/// Returns the first output of SplitMix64 with this seed.
fn mixed(mut number: u64) -> u64 {
    split_mix(&mut number)
}
