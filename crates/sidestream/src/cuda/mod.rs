//! CUDA, loaded when the program runs: no toolkit is needed to build, and no driver to start.
//!
//! [`driver`] is the table of the driver's functions; [`Machine`] is some of its devices behind
//! [`Backend`](crate::backend::Backend).

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
