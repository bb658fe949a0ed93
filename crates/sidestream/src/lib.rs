//! Overlapped GPU pipelines that are ordered correctly by construction.

pub mod check;
pub mod op;
pub mod order;
