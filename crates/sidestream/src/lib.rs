//! Overlapped GPU pipelines that are ordered correctly by construction.

pub mod alloc;
pub mod backend;
pub mod check;
pub mod engine;
pub mod error;
pub mod log;
pub mod op;
pub mod order;
pub mod sim;
pub mod trace;
