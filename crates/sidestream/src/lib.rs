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
//!   [`benchmark`], [`pipeline`], [`prefetch`]; [`explicit`] for CUDA as it is; [`error`].
//! - To look at them: [`check`], [`trace`], [`log`].
//! - Below: [`op`] and [`order`], calls and CUDA's rules of order as data; [`engine`] and [`sim`],
//!   the simulated GPU; [`backend`], what a GPU has to do; [`alloc`], the cache of memory;
//!   [`ptx`], the library's own kernels.

pub mod alloc;
pub mod backend;
pub mod benchmark;
pub mod buffer;
pub mod check;
pub mod cuda;
pub mod device;
pub mod engine;
pub mod error;
pub mod event;
pub mod explicit;
pub mod graph;
pub mod kernel;
pub mod log;
pub mod op;
pub mod order;
pub mod pipeline;
pub mod prefetch;
pub mod ptx;
pub mod sim;
pub mod stream;
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
