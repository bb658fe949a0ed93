//! Pseudo-random numbers that follow from a seed alone.

use sidestream::sim::{mixed, split_mix};

/// A source of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Returns the source for a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(mixed(seed.wrapping_add(0x5bf0_3635)))
    }

    /// Returns the source for a place of a job: the numbers of a place do not depend on what is drawn elsewhere.
    pub fn at(seed: u64, step: usize, key: u32) -> Draw {
        Draw(mixed(
            mixed(seed ^ 0x7254).wrapping_add(((step as u64) << 32) | u64::from(key)),
        ))
    }

    fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a number from 0 to just below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number between two others, evenly distributed.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a number between two others, with an evenly distributed logarithm.
    pub fn sized(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + (high / low).ln() * self.unit()).exp()
    }

    /// Returns an integer from 0 to `many - 1`.
    pub fn below(&mut self, many: usize) -> usize {
        (self.unit() * many as f64) as usize
    }

    /// Returns one of these values.
    pub fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    /// Draws a value with this probability, and otherwise returns the default one.
    pub fn maybe<T: Default>(&mut self, chance: f64, value: impl FnOnce(&mut Self) -> T) -> T {
        if self.happens(chance) {
            value(self)
        } else {
            T::default()
        }
    }

    /// Returns true with this probability; where that is 0, draws nothing.
    pub fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.unit() < chance
    }

    /// Returns a factor around 1, seldom more than three times `spread` away from it.
    pub fn about_one(&mut self, spread: f64) -> f64 {
        let sum: f64 = (0..6).map(|_| self.unit()).sum();
        (1.0 + spread * (sum - 3.0) * std::f64::consts::SQRT_2).max(0.3)
    }
}
