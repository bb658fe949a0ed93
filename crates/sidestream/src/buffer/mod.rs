//! Memory: on a device, or page-locked on the host.
//!
//! A [`DeviceBuf`] remembers which streams used which of its bytes, and a call that uses them again
//! on another stream waits there for exactly those. A [`Pinned`] is always idle: what the device
//! may still touch is owned by a [`Pending`], which gives it back when that is over.

pub(crate) mod block;
mod pending;
mod pinned;
#[cfg(doctest)]
mod refused;
mod registered;
pub(crate) mod uses;
mod view;

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

pub use bytemuck::Pod;

use block::Block;

pub(crate) use pending::Held;
pub use pending::{Pending, Refused};
pub use pinned::Pinned;
pub(crate) use registered::Vector;
pub(crate) use view::within;
pub use view::{View, ViewMut};

/// `len` values in the memory of a device.
///
/// Made by [`Stream::alloc`](crate::stream::Stream::alloc). Its content is unspecified until it is
/// written; any bits are a value of a plain type, so nothing undefined can be read.
///
/// # Ordering
/// Dropping it neither waits nor calls the driver: the memory goes back to the allocator together
/// with its pending uses, and whoever gets it next stands behind them.
pub struct DeviceBuf<T> {
    block: Box<Block>,
    len: usize,
    holds: PhantomData<T>,
}

impl<T: Pod> DeviceBuf<T> {
    pub(crate) fn new(block: Box<Block>, len: usize) -> DeviceBuf<T> {
        DeviceBuf {
            block,
            len,
            holds: PhantomData,
        }
    }

    /// How many values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// How many bytes they take.
    pub fn size_bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// All of it, to be read.
    pub fn view(&self) -> View<'_, T> {
        View::new(&self.block, 0, self.len)
    }

    /// All of it, to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(&self.block, 0, self.len)
    }

    /// A range of it, to be read.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View<'_, T> {
        self.view().slice(range)
    }

    /// A range of it, to be written.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> ViewMut<'_, T> {
        self.view_mut().slice(range)
    }
}

impl<T> fmt::Debug for DeviceBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, at) = (self.block.device.0, self.block.address.0);
        write!(
            f,
            "DeviceBuf({} values on device {device} at {at:#x})",
            self.len
        )
    }
}
