//! One piece of memory that several threads fill at once.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory for the pictures of a batch.
pub trait Slab: Send + 'static {
    /// All of it. A slab keeps its length.
    fn bytes(&mut self) -> &mut [u8];
}

impl Slab for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Page-locked memory, from which a stream uploads without a copy in between.
impl Slab for sidestream::buffer::Pinned<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// A slab of which there are [pieces](Piece). It can be had back when there are none any more.
pub(super) struct Whole<S>(Arc<Owned<S>>);

/// Some bytes of a slab that nobody else has.
pub(super) struct Piece<S> {
    bytes: NonNull<[u8]>,
    _owner: Arc<Owned<S>>,
}

/// A slab in a box of its own. Nobody touches the slab itself before this is gone.
struct Owned<S>(NonNull<S>);

// SAFETY: through a shared `Owned` nothing of the slab can be reached. It is dropped or taken out by one thread, whichever
// that is, which `S: Send` allows.
unsafe impl<S: Send> Send for Owned<S> {}
// SAFETY: as above.
unsafe impl<S: Send> Sync for Owned<S> {}
// SAFETY: the bytes are this piece's alone, and bytes may be used by any thread.
unsafe impl<S: Send> Send for Piece<S> {}

impl<S> Drop for Owned<S> {
    fn drop(&mut self) {
        // SAFETY: it comes from a box, and `take` forgets what it empties. No piece is left: each owns a share of this.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Cuts pieces out of a slab: one for each range.
///
/// # Panics
/// If the ranges do not follow each other, or end beyond the slab.
pub(super) fn cut<S: Slab>(
    slab: S,
    ranges: impl Iterator<Item = Range<usize>>,
) -> (Whole<S>, Vec<Piece<S>>) {
    let slab = NonNull::from(Box::leak(Box::new(slab)));
    let owner = Arc::new(Owned(slab));
    // SAFETY: the box stays until the last owner is gone, and until then nobody else borrows what is in it: this is the one
    // place that does. That every piece owns a share makes the borrow last as long as the pieces.
    let mut rest: &mut [u8] = unsafe { (*slab.as_ptr()).bytes() };
    let mut at = 0;
    let pieces = ranges.map(|range| {
        let (_, after) = std::mem::take(&mut rest).split_at_mut(range.start - at);
        let (bytes, after) = after.split_at_mut(range.len());
        (rest, at) = (after, range.end);
        Piece {
            bytes: NonNull::from(bytes),
            _owner: Arc::clone(&owner),
        }
    });
    let pieces = pieces.collect();
    (Whole(owner), pieces)
}

impl<S> Whole<S> {
    /// The slab, if all its pieces are gone.
    pub fn take(self) -> Option<S> {
        let owned = std::mem::ManuallyDrop::new(Arc::into_inner(self.0)?);
        // SAFETY: it comes from a box, and is not dropped a second time.
        Some(*unsafe { Box::from_raw(owned.0.as_ptr()) })
    }
}

impl<S> Deref for Piece<S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes belong to this piece, for as long as it owns a share of the slab.
        unsafe { self.bytes.as_ref() }
    }
}

impl<S> DerefMut for Piece<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; pieces do not overlap.
        unsafe { self.bytes.as_mut() }
    }
}
