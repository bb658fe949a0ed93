//! Numbers drawn from a seed, the same on every machine.

use sidestream::sim::split_mix;

/// A random number generator that depends on the seed alone.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a number below the bound.
    pub fn below<N: TryFrom<u64>>(&mut self, bound: N) -> N
    where
        u64: TryFrom<N>,
    {
        let bound = u64::try_from(bound).ok().expect("a bound is positive");
        let drawn = N::try_from(self.next() % bound);
        drawn
            .ok()
            .expect("what is below a number fits where that does")
    }
}
