//! Memory: on a device, or page-locked on the host.
//!
//! A [`DeviceBuf`] remembers which streams used which of its bytes; a call that uses those bytes on another stream
//! waits for exactly those uses. A [`Pinned`] is always idle: memory that the device may still use is owned by a
//! [`Pending`], which gives it back when the work is complete.
//!
//! # Structs as values
//! Buffers hold values of [`Pod`] types, for which every bit pattern is a valid value. Numbers and arrays of numbers
//! are `Pod`. For a struct, derive `Pod` with the `bytemuck` that this library re-exports:
//!
//! ```
//! use sidestream::prelude::*;
//!
//! #[derive(Clone, Copy, Pod, Zeroable)]
//! #[bytemuck(crate = "sidestream::bytemuck")]
//! #[repr(C)]
//! struct Particle {
//!     at: [f32; 3],
//!     mass: f32,
//! }
//!
//! let device = Device::open("sim:h200")?;
//! let stream = device.stream("particles")?;
//! let double = Kernel::<Write<Particle>>::on_host("double", |_, particles| {
//!     for particle in particles {
//!         particle.mass *= 2.0;
//!     }
//! });
//! let mut particles = stream.alloc_from(&[Particle { at: [0.0; 3], mass: 1.5 }])?;
//! stream.launch(&double, Grid::cover(1, 256), particles.view_mut())?;
//! assert_eq!(stream.to_vec(particles.view())?[0].mass, 3.0);
//! # Ok::<(), sidestream::Error>(())
//! ```
//!
//! `repr(C)` fixes the layout of the fields, as a kernel in CUDA C++ expects it. The derive refuses a struct with
//! padding between fields.

mod pending;
mod pinned;
#[cfg(doctest)]
mod refused;
mod registered;
mod view;

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// The derives, and the trait `Zeroable`. The trait `Pod` is our own, which shadows bytemuck's: its diagnostic says
/// what to do for a type that is not `Pod`.
mod derives {
    pub use bytemuck::{Pod, Zeroable};
}
pub use derives::*;

use crate::tracker::Block;

pub(crate) use pending::Held;
pub use pending::{Pending, Refused};
pub use pinned::Pinned;
pub(crate) use view::within;
pub use view::{View, ViewMut};

/// A plain type: every bit pattern is a valid value, and it has no references and no padding. Numbers and arrays of
/// them are plain; a struct becomes plain by `#[derive(Clone, Copy, Pod, Zeroable)]` ([how](self#structs-as-values)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plain type, as the values of buffers and kernels are",
    label = "`{Self}` is not `Pod`",
    note = "a struct of plain types becomes one by
`#[derive(Clone, Copy, sidestream::buffer::Pod, sidestream::buffer::Zeroable)]`
`#[bytemuck(crate = \"sidestream::bytemuck\")]`
`#[repr(C)]`"
)]
pub trait Pod: bytemuck::Pod {}

#[diagnostic::do_not_recommend]
impl<T: bytemuck::Pod> Pod for T {}

/// `len` values in the memory of a device.
///
/// Made by [`Stream::alloc`](crate::stream::Stream::alloc). The content is unspecified until it is written. Reading
/// it is not undefined behaviour, since every bit pattern is a value of a plain type.
///
/// # Ordering
/// Dropping the buffer neither waits nor calls the driver: the memory goes back to the allocator together with its
/// pending uses, and the next owner's uses wait for them.
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

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Returns a view of the whole buffer for reading.
    pub fn view(&self) -> View<'_, T> {
        View::new(&self.block, 0, self.len)
    }

    /// Returns a view of the whole buffer for writing.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(&self.block, 0, self.len)
    }

    /// Returns a view of a range for reading.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View<'_, T> {
        self.view().slice(range)
    }

    /// Returns a view of a range for writing.
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
