//! GPU work on side streams that is ordered correctly by construction.
//!
//! A program in the safe API cannot race: what has to be waited for is found from what each call
//! reads and writes. The guide is `docs/runtime.md`. Devices are NVIDIA's, through
//! their driver, or simulated.
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
//! - To write programs: [`prelude`], which most need and no more, [`device`], [`stream`], [`buffer`], [`kernel`], [`event`], [`graph`],
//!   [`pipeline`], [`prefetch`], [`pool`]; [`explicit`] for CUDA as it is; [`benchmark`]; [`error`].
//! - To find their races: [`check`].
//!
//! The other modules are the library's own parts, public for the crates beside it and for its tests: these pages leave
//! them out, and they change without a word. What programs need of them stands in the modules above.
//! ARCHITECTURE.md has the map of all.

#[doc(hidden)]
pub mod alloc;
#[doc(hidden)]
pub mod backend;
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
pub mod pool;
pub mod prefetch;
mod process;
#[doc(hidden)]
pub mod ptx;
#[doc(hidden)]
pub mod sim;
pub mod stream;
#[doc(hidden)]
pub mod trace;

/// The crate whose traits say which types are plain ([`buffer::Pod`]), for derives:
/// `#[bytemuck(crate = "sidestream::bytemuck")]`.
pub use bytemuck;
pub use error::{Error, Result};

/// What most programs name, by one `use`.
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
