//! The last read of a range by every chain, its last access that may write and its last atomic ones.

use super::hazard::Use;
use crate::order::Near;

/// The number of reads stored inline. With three, a third of the reads of a busy program needed the overflow; with six
/// or more, the compiler no longer compares all of them without branches.
const NEAR: usize = 5;

/// One read per chain. The first few are stored inline and are compared all at once, without branches: their
/// number is as good as random, and a branch mispredicted costs more than comparing all of them. A free
/// entry holds [`Use::NONE`], which is ordered before everything.
#[derive(Clone, Debug)]
pub(super) struct Reads {
    near: [Use; NEAR],
    /// The reads that do not fit into `near`, and the guesses.
    far: Option<Box<Far>>,
}

#[derive(Clone, Debug, Default)]
struct Far {
    /// Sorted by chain. Empty unless all of `near` is in use.
    reads: Vec<Use>,
    /// The accesses that may write, one per chain, and the atomic ones, one per chain and buffer, sorted by these. Like
    /// guesses, atomic accesses conflict with reads and writes, and hide neither.
    guesses: Vec<Use>,
}

fn place_in<K: Ord>(uses: &mut Vec<Use>, key: impl Fn(&Use) -> K, wanted: K) -> &mut Use {
    let at = uses.partition_point(|known| key(known) < wanted);
    if uses.get(at).is_none_or(|known| key(known) != wanted) {
        uses.insert(at, Use::NONE);
    }
    &mut uses[at]
}

impl Default for Reads {
    fn default() -> Self {
        Reads {
            near: [Use::NONE; NEAR],
            far: None,
        }
    }
}

impl Reads {
    /// Whether all reads are known to be ordered before the end of the chain whose clock is `known`. `false` may be
    /// wrong, as in [`Near`].
    #[inline]
    pub(super) fn all_surely_before(&self, known: Near<'_>) -> bool {
        let near = self.near.iter().map(|read| read.is_surely_before(known));
        near.fold(true, |all, one| all & one) && (!self.may_be_far() || self.far_before(known))
    }

    /// Like [`Reads::all_surely_before`], for the accesses that may write or are atomic.
    #[inline]
    pub(super) fn guesses_surely_before(&self, known: Near<'_>) -> bool {
        let before = |guess: &Use| guess.is_surely_before(known);
        let far = self.far.as_deref();
        far.is_none_or(|far| far.guesses.iter().all(before))
    }

    /// Entries are filled in order, so while the last one is free there is no overflow.
    #[inline]
    fn may_be_far(&self) -> bool {
        !self.near[NEAR - 1].is_none()
    }

    fn far_before(&self, known: Near<'_>) -> bool {
        let far = self.far.as_deref();
        let before = |read: &Use| read.is_surely_before(known);
        far.is_none_or(|far| far.reads.iter().all(before))
    }

    pub(super) fn for_each(&self, mut each: impl FnMut(&Use)) {
        let near = self.near.iter().filter(|read| !read.is_none());
        near.for_each(&mut each);
        if let Some(far) = &self.far {
            far.reads.iter().for_each(each);
        }
    }

    pub(super) fn for_each_guess(&self, each: impl FnMut(&Use)) {
        if let Some(far) = &self.far {
            far.guesses.iter().for_each(each);
        }
    }

    /// Stores an access that may write or is atomic, as the last one of its chain.
    pub(super) fn set_guess(&mut self, guess: Use) {
        let key = |guess: &Use| (guess.epoch.chain, guess.atomic_of());
        *place_in(
            &mut self.far.get_or_insert_default().guesses,
            key,
            key(&guess),
        ) = guess;
    }

    /// Returns the entry of the last read of a chain.
    #[inline]
    pub(super) fn place(&mut self, chain: u32) -> &mut Use {
        let mut place = NEAR;
        for (at, known) in self.near.iter().enumerate().rev() {
            if known.is_none() | (known.epoch.chain == chain) {
                place = at;
            }
        }
        match self.near.get_mut(place) {
            Some(near) => near,
            None => {
                let of = |read: &Use| read.epoch.chain;
                place_in(&mut self.far.get_or_insert_default().reads, of, chain)
            }
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        if let Some(far) = &mut self.far {
            // The vectors keep their capacity: memory that many chains have read will be read by many again.
            far.reads.clear();
            far.guesses.clear();
        }
        self.near.iter_mut().for_each(Use::forget);
    }
}
