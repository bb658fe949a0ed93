//! CUDA: the driver's functions, loaded when the program runs.

pub mod driver;
mod library;

pub use library::NotLoaded;
