//! What a trace says in numbers, exactly: integers of nanoseconds, no estimates.

mod copies;
mod devices;
mod links;
mod spans;

pub use copies::{Copies, copies, host_side};
pub use devices::{Class, Collectives, DeviceTime, StreamLoad, class, devices};
pub use links::Links;
pub use spans::Spans;
