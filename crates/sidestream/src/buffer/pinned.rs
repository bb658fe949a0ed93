//! Page-locked host memory, which devices reach without the host's help.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Pod;
use crate::op::Mode;
use crate::tracker::{Block, Touch};

/// `len` values in page-locked host memory, which no device touches.
///
/// Whoever holds it may read and write it like a slice. A copy takes it
/// ([`Stream::upload`](crate::stream::Stream::upload),
/// [`Stream::download`](crate::stream::Stream::download)), and the [`Pending`](super::Pending) gives
/// it back when the copy is over.
///
/// Its content is unspecified at first: it may be what an earlier owner left.
/// [`Device::register`](crate::device::Device::register) pins memory that the program already has, with its content.
pub struct Pinned<T> {
    block: Box<Block>,
    len: usize,
    holds: PhantomData<T>,
}

impl<T: Pod> Pinned<T> {
    /// `block` is host memory for at least `len` values, aligned for them.
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

    /// All of it.
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
        // SAFETY: the back end promises that the address is host memory of the block's size, always
        // initialised and exposed; the allocator aligns pieces to 64 bytes and gives each to one
        // owner. Registered memory is a vector of `T` with so many values, which nobody else has;
        // its address is exposed as well. `T` is `Pod`, so all bits are values. No device writes it: whoever submits a copy
        // owns the `Pinned`, and gives it back only when the copy is over.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&&**self).finish()
    }
}
