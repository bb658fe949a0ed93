//! Counter-based random numbers: Philox 4x32-10, as in Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
//! easy as 1, 2, 3" (SC 2011).
//!
//! A number depends only on its key and its place, so it does not matter who draws first, how many draw, or whether a
//! run was resumed.
//!
//! The seed of a [`Key`] is the cipher's key; epoch and sample are its counter. For one seed Philox is a bijection, so
//! no two pictures get the same four words: two of them become the key of the numbers, and the other two stay in the
//! counter, next to the operator's place and the number of the draw.

use crate::Key;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// Computes one block of Philox 4x32-10.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [0, 1].map(|at| key[at].wrapping_add(WEYL[at]));
        }
        let [a, b] = [0, 1].map(|at| u64::from(MULTIPLIERS[at]) * u64::from(counter[2 * at]));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// The random numbers of one operator for one picture.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    key: [u32; 2],
    rest: [u32; 2],
    operator: u32,
    block: u32,
    /// A block yields two numbers: this is the second, until it is drawn.
    spare: Option<u64>,
}

impl Draws {
    /// Returns the numbers of the operator at this place of a plan.
    pub(crate) fn new(key: Key, operator: u32) -> Draws {
        let words = |value: u64| [value as u32, (value >> 32) as u32];
        let (sample, epoch) = (words(key.sample), words(key.epoch));
        let counter = [sample[0], sample[1], epoch[0], epoch[1]];
        let [a, b, c, d] = philox(counter, words(key.seed));
        Draws {
            key: [a, b],
            rest: [c, d],
            operator,
            block: 0,
            spare: None,
        }
    }

    /// Returns 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let counter = [self.block, self.operator, self.rest[0], self.rest[1]];
        self.block = self.block.wrapping_add(1);
        let [a, b, c, d] = philox(counter, self.key).map(u64::from);
        self.spare = Some(c | d << 32);
        a | b << 32
    }

    /// Returns a number of at least 0 and below 1, from 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number between `low` and `high`, which may be equal.
    pub(crate) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a number below `count`, which is not 0. All have equal probability up to an error below 2⁻³².
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(count)) >> 64) as u32
    }

    /// Returns true with this probability.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns the numbers below `COUNT` in random order.
    pub(crate) fn order<const COUNT: usize>(&mut self) -> [usize; COUNT] {
        let mut order = std::array::from_fn(|at| at);
        for last in (1..COUNT).rev() {
            order.swap(last, self.below(last as u32 + 1) as usize);
        }
        order
    }

    /// Draws from a beta distribution with both parameters `alpha`: by Jöhnk's method for `alpha` of at most 1, where
    /// it needs few numbers, and otherwise from two gamma variates by Marsaglia and Tsang.
    pub(crate) fn beta(&mut self, alpha: f64) -> f64 {
        if alpha <= 1.0 {
            // The loop ends: each try succeeds with a probability of at least one half.
            loop {
                let [a, b] = [0; 2].map(|_| self.unit().powf(1.0 / alpha));
                if a + b > 0.0 && a + b <= 1.0 {
                    return a / (a + b);
                }
            }
        }
        let (a, b) = (self.gamma(alpha), self.gamma(alpha));
        a / (a + b)
    }

    fn gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
            let v = (1.0 + c * normal).powi(3);
            let accepted = 0.5 * normal * normal + d - d * v + d * v.max(f64::MIN_POSITIVE).ln();
            if v > 0.0 && (1.0 - self.unit()).ln() < accepted {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the paper's authors publish with their library Random123 (`kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        let all = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in all {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn numbers_depend_on_every_part_of_the_key_and_on_the_place() {
        let key = Key::new(1, 2, 3);
        let first = |key, operator| Draws::new(key, operator).bits();
        let mut all = vec![
            first(key, 0),
            first(key, 1),
            first(Key { seed: 4, ..key }, 0),
            first(Key { epoch: 4, ..key }, 0),
            first(Key { sample: 4, ..key }, 0),
            first(
                Key {
                    seed: 1 << 40,
                    ..key
                },
                0,
            ),
            first(
                Key {
                    epoch: 1 << 40,
                    ..key
                },
                0,
            ),
            first(
                Key {
                    sample: 1 << 40,
                    ..key
                },
                0,
            ),
        ];
        assert_eq!(first(key, 0), all[0]);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut draws = Draws::new(Key::new(7, 0, 0), 0);
        let mut moments = |alpha: f64| {
            let all: Vec<f64> = (0..20_000).map(|_| draws.beta(alpha)).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let spread = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
            (mean, spread)
        };
        for alpha in [0.2, 1.0, 4.0] {
            let (mean, spread) = moments(alpha);
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: mean {mean}");
            assert!(
                (spread / expected - 1.0).abs() < 0.05,
                "{alpha}: variance {spread}, not {expected}"
            );
        }
        let mut seen = [0; 24];
        for _ in 0..24_000 {
            let [a, b, c, _] = draws.order::<4>();
            let rank = |x: usize, taken: &[usize]| x - taken.iter().filter(|&&t| t < x).count();
            seen[a * 6 + rank(b, &[a]) * 2 + rank(c, &[a, b])] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
