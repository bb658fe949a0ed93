//! Numbers drawn from a seed, the same on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): the seed alone decides what is drawn.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below the bound.
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
