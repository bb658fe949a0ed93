//! GPU work on side streams that is ordered correctly by construction.
//!
//! A program in the safe API cannot race: what has to be waited for is found from what each call
//! reads and writes. The guide is `docs/runtime.md`. Devices are NVIDIA's, through
//! their driver, or simulated.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::kernel::{Grid, Kernel, Read, Write};
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
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! - To write programs: [`device`], [`stream`], [`buffer`], [`kernel`], [`event`], [`graph`],
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
mod process;
pub mod ptx;
pub mod sim;
pub mod stream;
pub mod trace;
