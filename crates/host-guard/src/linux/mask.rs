//! Which slots of a table are in use, as bits: few words to read, however many slots there are.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of slots of a table.
pub const SLOTS: usize = 1024;
const BITS: usize = u64::BITS as usize;

pub struct Mask([AtomicU64; SLOTS / BITS]);

impl Mask {
    pub const fn new() -> Mask {
        Mask([const { AtomicU64::new(0) }; SLOTS / BITS])
    }

    /// Takes a free slot among the first ones, for this caller alone.
    pub fn take(&self, first: usize) -> Option<usize> {
        let mut at = 0;
        while at < first {
            let word = &self.0[at / BITS];
            let free = (!word.load(Ordering::Relaxed)).trailing_zeros() as usize;
            if free == BITS {
                at = (at / BITS + 1) * BITS;
                continue;
            }
            at = at / BITS * BITS + free;
            if at < first && word.fetch_or(1 << free, Ordering::SeqCst) & (1 << free) == 0 {
                return Some(at);
            }
        }
        None
    }

    /// Gives a slot back.
    pub fn give(&self, at: usize) {
        self.0[at / BITS].fetch_and(!(1 << (at % BITS)), Ordering::SeqCst);
    }

    /// The slots that are in use.
    #[inline]
    pub fn used(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut left = word.load(Ordering::SeqCst);
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < BITS).then_some(at * BITS + bit)
            })
        })
    }
}
