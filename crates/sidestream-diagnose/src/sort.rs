//! Sorts by integer keys: one instance of the standard library's sort for all types.

use std::cmp::Reverse;

/// Up to three numbers, the first one first.
type Bits = [u64; 3];

/// A type that can be a part of a key.
pub trait Part {
    /// Returns a number with the same order.
    fn bits(self) -> u64;
}

/// A key for sorting.
pub trait Key {
    /// Returns numbers with the same order.
    fn bits(self) -> Bits;
}

/// Sorts by a key; elements with equal keys keep their order.
pub fn order_by<T, K: Key>(items: &mut [T], key: impl Fn(&T) -> K) {
    let keys = items.iter().map(|item| key(item).bits());
    let mut order: Vec<(Bits, usize)> = keys.zip(0..).collect();
    order.sort_unstable();
    // Applies each cycle of the permutation with one swap for each of its elements.
    for start in 0..order.len() {
        let mut at = start;
        while order[at].1 != start {
            let from = order[at].1;
            items.swap(at, from);
            order[at].1 = at;
            at = from;
        }
        order[at].1 = at;
    }
}

/// Defines for each type of number its value in 64 bits.
macro_rules! parts {
    ($($kind:ty: $bits:expr,)+) => {
        $(impl Part for $kind {
            fn bits(self) -> u64 {
                let bits: fn($kind) -> u64 = $bits;
                bits(self)
            }
        })+
    };
}

parts! {
    u64: |number| number,
    u32: u64::from,
    u16: u64::from,
    bool: u64::from,
    usize: |number| number as u64,
    i64: |number| (number as u64) ^ (1 << 63),
}

impl<P: Part> Part for Option<P> {
    /// `None` comes first; only numbers of fewer than 64 bits have room for it.
    fn bits(self) -> u64 {
        self.map_or(0, |part| part.bits() + 1)
    }
}

impl<P: Part> Part for Reverse<P> {
    fn bits(self) -> u64 {
        !self.0.bits()
    }
}

impl<A: Part> Key for A {
    fn bits(self) -> Bits {
        [Part::bits(self), 0, 0]
    }
}

impl<A: Part, B: Part> Key for (A, B) {
    fn bits(self) -> Bits {
        [self.0.bits(), self.1.bits(), 0]
    }
}

impl<A: Part, B: Part, C: Part> Key for (A, B, C) {
    fn bits(self) -> Bits {
        [self.0.bits(), self.1.bits(), self.2.bits()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_the_standard_library_does() {
        let mut state = 1u64;
        for length in 0..200 {
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                state >> 33
            };
            let items: Vec<(u64, i64, usize)> = (0..length)
                .map(|at| (next() % 7, next() as i64 % 5 - 2, at))
                .collect();
            let (mut ours, mut theirs) = (items.clone(), items);
            order_by(&mut ours, |one| (Reverse(one.0), one.1));
            theirs.sort_by_key(|one| (Reverse(one.0), one.1));
            assert_eq!(ours, theirs);
        }
    }
}
