//! What `sidestream check -- PROGRAM` and `sidestream record -- PROGRAM` load into a program: it hears each CUDA call from
//! CUPTI, NVIDIA's profiling interface, and writes it into a ring in a file that the command reads meanwhile.
//!
//! CUDA's driver loads the library named by `CUDA_INJECTION64_PATH` when a program initializes CUDA. So nothing of the
//! program is changed. The library knows no rule and interprets nothing: it copies the arguments of a call, as the table
//! [`calls::CALLS`] says, and the command makes operations of them.
//!
//! The crate is compiled twice: by Cargo as a part of the command, which needs the table and the format of the ring
//! ([`wire`]), and by the command's build script as a shared library, from [`SOURCES`] and without any dependency.

#![cfg_attr(not(injected), allow(dead_code))]

#[cfg(target_os = "linux")]
mod activity;
pub mod areas;
pub mod calls;
#[cfg(target_os = "linux")]
mod cupti;
#[cfg(target_os = "linux")]
mod exact;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod in_flight;
#[cfg(target_os = "linux")]
mod kernels;
pub mod learned;
#[cfg(target_os = "linux")]
mod listen;
#[cfg(target_os = "linux")]
mod nvtx;
#[cfg(target_os = "linux")]
pub mod python;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod sites;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(target_os = "linux")]
mod system;
pub mod wire;

/// The folder of the files of the crate on which this one depends.
#[cfg(not(injected))]
pub use host_guard::SOURCES as GUARD_SOURCES;

/// The folder of this crate's files, for the build script that compiles the shared library.
#[cfg(not(injected))]
pub const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
