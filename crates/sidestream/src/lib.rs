//! Overlapped GPU pipelines that are ordered correctly by construction.

pub mod engine;
pub mod op;
pub mod order;
