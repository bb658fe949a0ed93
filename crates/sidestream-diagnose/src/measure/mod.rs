//! Exact measurements of a trace: integers of nanoseconds, no estimates.

mod copies;
mod devices;
mod engines;
mod held_memory;
mod host;
mod iterations;
mod legacy;
mod links;
mod lost;
mod operators;
mod per_step;
mod ranges;
mod spans;
mod steps;
mod tables;

pub use copies::{Copies, copies};
pub use devices::{Class, Collectives, DeviceTime, StreamLoad, class, devices, is_collective};
pub use engines::copy_engines;
pub use held_memory::{DeviceMemory, Holder, memory};
pub use host::{Blocking, Held, Launches, WorkOfCalls, blocking, held, launches};
pub use legacy::stream_kinds;
pub use links::Links;
pub use lost::{lost_of_graphs, sampled};
pub use operators::{Operator, RowKind, by_name, host_rows};
pub use per_step::PerStep;
pub use ranges::{Node, Ranges, Shares};
pub use spans::{Spans, add};
pub use steps::{Step, Steps, StepsBy, is_of_framework, quantile};
pub use tables::{Line, kernels, operators};
