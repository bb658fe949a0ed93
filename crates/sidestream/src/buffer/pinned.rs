//! Page-locked host memory, which devices access directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Pod;
use crate::op::Mode;
use crate::tracker::{Block, Touch};

/// `len` values in page-locked host memory, which no device is using.
///
/// Its owner may read and write it like a slice. A copy takes it ([`Stream::upload`](crate::stream::Stream::upload),
/// [`Stream::download`](crate::stream::Stream::download)), and the [`Pending`](super::Pending) gives it back when the
/// copy is complete.
///
/// Its content is unspecified at first: an earlier owner's values may still be there.
/// [`Device::register`](crate::device::Device::register) pins memory that the program already has, with its content.
pub struct Pinned<T> {
    block: Box<Block>,
    len: usize,
    holds: PhantomData<T>,
}

impl<T: Pod> Pinned<T> {
    /// Wraps `block`, which is host memory that is large enough for `len` values and aligned for them.
    pub(crate) fn new(block: Box<Block>, len: usize) -> Pinned<T> {
        const {
            assert!(
                align_of::<T>() <= 64,
                "pinned memory is aligned to 64 bytes"
            )
        };
        debug_assert!(block.memory.is_host());
        debug_assert!(block.size_bytes >= (len * size_of::<T>()) as u64);
        debug_assert!(block.address.0.is_multiple_of(align_of::<T>() as u64));
        Pinned {
            block,
            len,
            holds: PhantomData,
        }
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// Returns an access to the whole memory.
    pub(crate) fn touch(&self, mode: Mode) -> Touch<'_> {
        Touch {
            block: &self.block,
            start: 0,
            end: (self.len * size_of::<T>()) as u64,
            mode,
        }
    }

    pub(crate) fn block_mut(&mut self) -> &mut Block {
        &mut self.block
    }

    fn start(&self) -> NonNull<T> {
        let address = std::ptr::with_exposed_provenance_mut(self.block.address.0 as usize);
        NonNull::new(address).unwrap_or(NonNull::dangling())
    }
}

impl<T: Pod> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the back end promises that the address is host memory of the block's size, always initialised and
        // exposed; the allocator aligns pieces to 64 bytes and gives each to one owner. Registered memory is a vector
        // of `T` with this many values and no other owner; its address is exposed as well. `T` is `Pod`, so all bits
        // are values. No device writes it: a caller that submits a copy gives up the `Pinned`, and gets it back only
        // when the copy is complete.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&&**self).finish()
    }
}
