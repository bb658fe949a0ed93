//! The last read of a range by every chain.

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
    /// The overflow, sorted by chain. Empty unless all of `near` is in use.
    far: Option<Box<Far>>,
}

#[derive(Clone, Debug, Default)]
struct Far {
    reads: Vec<Use>,
}

impl Far {
    fn place(&mut self, chain: u32) -> &mut Use {
        let at = self
            .reads
            .partition_point(|known| known.epoch.chain < chain);
        let known = self.reads.get(at);
        if known.is_none_or(|known| known.epoch.chain != chain) {
            self.reads.insert(at, Use::NONE);
        }
        &mut self.reads[at]
    }
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
            None => self.far.get_or_insert_default().place(chain),
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        if self.may_be_far()
            && let Some(far) = &mut self.far
        {
            // The vector keeps its capacity: memory that many chains have read will be read by many again.
            far.reads.clear();
        }
        self.near.iter_mut().for_each(Use::forget);
    }
}
