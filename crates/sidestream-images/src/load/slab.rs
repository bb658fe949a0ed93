//! Memory that several threads fill at once.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory for the pictures of a batch.
pub trait Slab: Send + 'static {
    /// Returns all bytes of the slab. Their number never changes.
    fn bytes(&mut self) -> &mut [u8];
}

impl Slab for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Pinned memory, from which a stream uploads without an intermediate copy.
impl Slab for sidestream::buffer::Pinned<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// A slab that is cut into [pieces](Piece). It can be taken out again when all pieces are dropped.
pub(super) struct Whole<S>(Arc<Owned<S>>);

/// A range of a slab's bytes that no other piece has.
pub(super) struct Piece<S> {
    bytes: NonNull<[u8]>,
    _owner: Arc<Owned<S>>,
}

/// A slab in a box. The slab itself is not used until this value is dropped.
struct Owned<S>(NonNull<S>);

// SAFETY: a shared `Owned` gives no access to the slab. One thread, whichever it is, drops it or takes it out, which
// `S: Send` allows.
unsafe impl<S: Send> Send for Owned<S> {}
// SAFETY: as above.
unsafe impl<S: Send> Sync for Owned<S> {}
// SAFETY: no other piece has these bytes, and any thread may use bytes.
unsafe impl<S: Send> Send for Piece<S> {}

impl<S> Drop for Owned<S> {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from a box, and `take` forgets an `Owned` that it empties. No piece is left: each
        // owns a share of this value.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Cuts a slab into pieces, one for each range.
///
/// # Panics
/// If the ranges do not follow each other, or end beyond the slab.
pub(super) fn cut<S: Slab>(
    slab: S,
    ranges: impl Iterator<Item = Range<usize>>,
) -> (Whole<S>, Vec<Piece<S>>) {
    let slab = NonNull::from(Box::leak(Box::new(slab)));
    let owner = Arc::new(Owned(slab));
    // SAFETY: the box lives until the last owner is gone, and until then this is the only place that borrows its
    // contents. Each piece owns a share, so the borrow lasts as long as the pieces.
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
    /// Returns the slab if all its pieces are dropped.
    pub fn take(self) -> Option<S> {
        let owned = std::mem::ManuallyDrop::new(Arc::into_inner(self.0)?);
        // SAFETY: the pointer comes from a box, and is not freed a second time.
        Some(*unsafe { Box::from_raw(owned.0.as_ptr()) })
    }
}

impl<S> Deref for Piece<S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes belong to this piece alone, for as long as it owns a share of the slab.
        unsafe { self.bytes.as_ref() }
    }
}

impl<S> DerefMut for Piece<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; pieces do not overlap.
        unsafe { self.bytes.as_mut() }
    }
}
