//! Runs any CUDA program and listens to its calls: `check -- PROGRAM`, `record -- PROGRAM`; or to what its devices did:
//! `diagnose -- PROGRAM`.
//!
//! The program runs as it is. A library that CUDA's driver loads into it ([`library`]) writes each call into a ring
//! ([`ring`]), from which the command makes operations ([`translate`]) while the program runs.

mod check;
mod copies;
mod graphs;
mod kernel;
mod library;
mod memory;
mod profile;
pub mod record;
mod ring;
mod session;
#[doc(hidden)]
pub mod symbols;
mod translate;

pub use check::main as check;
pub use profile::{Recorded, main as profile};
pub use session::Options;
