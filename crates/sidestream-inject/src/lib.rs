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
mod hold;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod in_flight;
#[cfg(target_os = "linux")]
mod kernels;
#[cfg(target_os = "linux")]
mod listen;
#[cfg(target_os = "linux")]
mod nvtx;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod sites;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(target_os = "linux")]
mod system;
pub mod wire;

/// The files of the crate on which this one depends.
#[cfg(not(injected))]
pub use host_guard::SOURCES as GUARD_SOURCES;

/// The files of this crate, for the build script that compiles the shared library.
#[cfg(not(injected))]
pub const SOURCES: &[(&str, &str)] = &[
    ("lib.rs", include_str!("lib.rs")),
    ("activity.rs", include_str!("activity.rs")),
    ("areas.rs", include_str!("areas.rs")),
    ("calls.rs", include_str!("calls.rs")),
    ("cupti.rs", include_str!("cupti.rs")),
    ("hold.rs", include_str!("hold.rs")),
    ("host.rs", include_str!("host.rs")),
    ("kernels.rs", include_str!("kernels.rs")),
    ("listen.rs", include_str!("listen.rs")),
    ("nvtx.rs", include_str!("nvtx.rs")),
    ("in_flight.rs", include_str!("in_flight.rs")),
    ("python.rs", include_str!("python.rs")),
    ("ring.rs", include_str!("ring.rs")),
    ("sites.rs", include_str!("sites.rs")),
    ("stack.rs", include_str!("stack.rs")),
    ("stack/rule.rs", include_str!("stack/rule.rs")),
    ("system.rs", include_str!("system.rs")),
    ("wire.rs", include_str!("wire.rs")),
];
