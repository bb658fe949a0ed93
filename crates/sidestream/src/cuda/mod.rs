//! CUDA, loaded when the program runs: building needs no toolkit, and starting the program needs no driver.
//!
//! [`driver`] is the table of the driver's functions; [`Machine`] is the [`Backend`](crate::backend::Backend) for
//! some of its devices.

mod devices;
pub mod driver;
mod failure;
mod gather;
mod graph;
mod host_func;
mod launch;
mod library;
mod machine;
mod memory;
pub mod nvrtc;
pub mod nvtx;
mod streams;
mod table;
mod timing;
mod wait;

pub use devices::Absent;
pub use library::NotLoaded;
pub use machine::{Machine, Unusable};
