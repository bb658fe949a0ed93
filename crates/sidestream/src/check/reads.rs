//! The last read of every chain.

use super::hazard::Use;

/// How many reads are kept in place.
const NEAR: usize = 2;

/// One read a chain. The first few stand in place, so that memory which few streams read costs no
/// second look-up, also after it was once read by many; the others keep their room for the next
/// time.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    near: [Option<Use>; NEAR],
    /// Sorted by chain. Empty unless all of `near` is taken.
    far: Vec<Use>,
}

impl Reads {
    #[inline]
    pub fn for_each(&self, mut each: impl FnMut(&Use)) {
        for read in self.near.iter().flatten() {
            each(read);
        }
        for read in &self.far {
            each(read);
        }
    }

    /// Puts a read in the place of the last one of its chain.
    #[inline]
    pub fn set(&mut self, read: &Use) {
        for place in &mut self.near {
            if place.is_none_or(|known| known.epoch.chain == read.epoch.chain) {
                *place = Some(*read);
                return;
            }
        }
        self.set_far(read);
    }

    fn set_far(&mut self, read: &Use) {
        let chain = read.epoch.chain;
        let at = self.far.partition_point(|known| known.epoch.chain < chain);
        match self.far.get_mut(at) {
            Some(known) if known.epoch.chain == chain => *known = *read,
            _ => self.far.insert(at, *read),
        }
    }

    #[inline]
    pub fn clear(&mut self) {
        self.near = [None; NEAR];
        self.far.clear();
    }
}
