//! Chance that follows from a seed alone.

use sidestream::sim::{mixed, split_mix};

/// A source of numbers.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// One for a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(mixed(seed.wrapping_add(0x5bf0_3635)))
    }

    /// One for a place of a job: the same place has the same chance, whatever is drawn elsewhere.
    pub fn at(seed: u64, step: usize, key: u32) -> Draw {
        Draw(mixed(
            mixed(seed ^ 0x7254).wrapping_add(((step as u64) << 32) | u64::from(key)),
        ))
    }

    fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// From 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Between two numbers.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Between two numbers, each size as likely as another.
    pub fn sized(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + (high / low).ln() * self.unit()).exp()
    }

    /// One of so many, from 0.
    pub fn below(&mut self, many: usize) -> usize {
        (self.unit() * many as f64) as usize
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    /// Whether it happens, with this chance.
    pub fn happens(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }

    /// A factor around 1, seldom beyond three times `spread` from it.
    pub fn about_one(&mut self, spread: f64) -> f64 {
        let sum: f64 = (0..6).map(|_| self.unit()).sum();
        (1.0 + spread * (sum - 3.0) * std::f64::consts::SQRT_2).max(0.3)
    }
}
