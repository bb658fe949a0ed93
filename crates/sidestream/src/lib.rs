//! GPU work on side streams that is ordered correctly by construction.
//!
//! A program in the safe API cannot race: each call names what it reads and writes, and from that the library derives
//! what the call has to wait for. The guide is `docs/guide/rust.md`. Devices are NVIDIA GPUs, through the CUDA driver,
//! or simulated ones.
//!
//! ```
//! use sidestream::prelude::*;
//!
//! let device = Device::open("sim:h200")?;
//! let (load, compute) = (device.stream("load")?, device.stream("compute")?);
//! let square = Kernel::<(Read<f32>, Write<f32>)>::on_host("square", |_, (x, y)| {
//!     for (y, x) in y.iter_mut().zip(x) {
//!         *y = x * x;
//!     }
//! });
//! let mut host = device.pinned(1024)?;
//! host.fill(3.0);
//! let (mut x, mut y) = (load.alloc(1024)?, compute.alloc(1024)?);
//! let sent = load.upload(host, x.view_mut())?;
//! compute.launch(&square, Grid::cover(1024, 256), (x.view(), y.view_mut()))?;
//! let back = compute.download(y.view(), sent.synchronize()?)?;
//! assert_eq!(back.synchronize()?[7], 9.0);
//! # Ok::<(), sidestream::Error>(())
//! ```
//!
//! - To write programs: [`prelude`] has the names that most programs need. They come from [`device`], [`stream`],
//!   [`buffer`], [`kernel`], [`event`], [`graph`], [`pipeline`] and [`prefetch`]. [`batcher`] serves requests;
//!   [`explicit`] offers CUDA's own model, with explicit events and waits; [`benchmark`] measures; [`error`] has the
//!   errors.
//! - To find their races: [`check`].
//!
//! The other modules are internal: they are public only for the neighbouring crates and for tests, are hidden from
//! these pages, and change without notice. The modules above re-export what programs need from them. ARCHITECTURE.md
//! describes all modules.

// An item that no other crate can name is not `pub`: in this crate, `pub` marks what it offers to others.
#![warn(unreachable_pub)]

#[doc(hidden)]
pub mod alloc;
#[doc(hidden)]
pub mod backend;
pub mod batcher;
pub mod benchmark;
pub mod buffer;
pub mod check;
#[doc(hidden)]
pub mod cuda;
pub mod device;
#[doc(hidden)]
pub mod engine;
pub mod error;
pub mod event;
pub mod explicit;
pub mod graph;
pub mod kernel;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod op;
#[doc(hidden)]
pub mod order;
pub mod pipeline;
pub mod prefetch;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod ptx;
#[doc(hidden)]
pub mod sim;
pub mod stream;
#[doc(hidden)]
pub mod trace;
mod tracker;

/// Re-exported for the derives of [`buffer::Pod`]: `#[bytemuck(crate = "sidestream::bytemuck")]`.
pub use bytemuck;
pub use error::{Error, Result};

/// The names that most programs need, for one `use`.
///
/// ```
/// use sidestream::prelude::*;
///
/// fn main() -> sidestream::Result<()> {
///     let device = Device::open("sim:h200")?;
///     let stream = device.stream("work")?;
///     let x = stream.alloc_from(&[1, 2, 3])?;
///     assert_eq!(stream.to_vec(x.view())?, [1, 2, 3]);
///     Ok(())
/// }
/// ```
pub mod prelude {
    pub use crate::buffer::{DeviceBuf, Pending, Pinned, Pod, View, ViewMut, Zeroable};
    pub use crate::device::{Device, Options};
    pub use crate::event::Event;
    pub use crate::graph::Graph;
    pub use crate::kernel::{Grid, Kernel, Read, Value, Write};
    pub use crate::pipeline::{Pipeline, per_item, per_row};
    pub use crate::stream::Stream;
}
