//! In which order the samples of an epoch come, and which of them belong to a rank.
//!
//! The order is a permutation that is computed place by place: nothing is shuffled, stored or sorted, so an epoch begins
//! at once and a run resumes anywhere at no cost, whatever the size of the data.
//!
//! The permutation is a Feistel network over the next even number of bits, walked until the result is a sample ("cycle
//! walking"; Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002). Each round exchanges the halves of a
//! number and adds a function of one to the other, which can be undone whatever the function is; so the network maps
//! numbers one to one. Following it from a sample until the next sample maps samples one to one: the path from a sample
//! lies on a cycle that leads back to it, so it meets a sample, and no two paths meet the same one. At most three of four
//! numbers are no samples, so a path takes four steps on average; a small set has 256 numbers, so that all orders are
//! possible.

use sidestream::sim::split_mix;

use crate::{Error, Result};

/// How the samples of an epoch are ordered and shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// How many samples there are.
    pub samples: u64,
    /// What the permutations are drawn from, with the number of the epoch.
    pub seed: u64,
    /// Whether there is a permutation at all.
    pub shuffle: bool,
    /// Which of the ranks this is.
    pub rank: u32,
    /// How many ranks share the samples.
    pub world: u32,
    /// What to do if they cannot be shared out evenly.
    pub uneven: Uneven,
}

/// What happens to the last samples of an epoch if there are not as many for each rank. All ranks have equally many
/// in any case: collectives of a rank that has one more would wait for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Uneven {
    /// The last ones are left out. Which these are differs from epoch to epoch, if they are shuffled.
    #[default]
    Drop,
    /// The first ones of the epoch come once more.
    Repeat,
}

const ROUNDS: u64 = 8;

impl Order {
    /// The same, if it can be.
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
            "`world` is 0; it is how many ranks share the data, so at least 1".into()
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

    /// How many samples a rank has in an epoch: the same for each rank.
    pub fn len(&self) -> u64 {
        let world = u64::from(self.world);
        match self.uneven {
            Uneven::Drop => self.samples / world,
            Uneven::Repeat => self.samples.div_ceil(world),
        }
    }

    /// Whether a rank has none, which [`Order::checked`] refuses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at a place of this rank's part of an epoch. The places of the ranks alternate: the first places of all ranks
    /// are the first samples of the epoch.
    ///
    /// # Panics
    /// If the epoch has not so many places.
    #[track_caller]
    pub fn sample(&self, epoch: u64, place: u64) -> u64 {
        assert!(place < self.len(), "place {place} of {}", self.len());
        let place = place * u64::from(self.world) + u64::from(self.rank);
        let place = place % self.samples;
        match self.shuffle {
            false => place,
            true => permuted(place, self.samples, mixed(self.seed ^ mixed(epoch))),
        }
    }
}

/// Where a place of `many` goes under the permutation that `key` chooses.
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

/// What SplitMix64 draws first from this number.
fn mixed(mut number: u64) -> u64 {
    split_mix(&mut number)
}
