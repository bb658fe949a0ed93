//! Overlapped GPU pipelines that are ordered correctly by construction.

pub mod alloc;
pub mod backend;
pub mod benchmark;
pub mod buffer;
pub mod check;
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
pub mod sim;
pub mod stream;
pub mod trace;
