//! What a trace says in numbers, exactly: integers of nanoseconds, no estimates.

mod copies;
mod devices;
mod host;
mod legacy;
mod links;
mod per_step;
mod spans;
mod steps;
mod tables;

pub use copies::{Copies, copies};
pub use devices::{Class, Collectives, DeviceTime, StreamLoad, class, devices, is_collective};
pub use host::{Blocking, Held, Launches, WorkOfCalls, blocking, held, launches};
pub use legacy::stream_kinds;
pub use links::Links;
pub use per_step::PerStep;
pub use spans::Spans;
pub use steps::{Step, Steps, StepsBy, is_of_framework, quantile};
pub use tables::{Line, kernels, operators};
