//! Traces of GPU programs: read, measured, and explained.
//!
//! [`read()`] takes a trace of any known kind and gives a [`Trace`]: what ran on each device and
//! stream, which calls of the host asked for it, and what the program itself named.

mod measure;
mod model;
mod read;

pub use measure::{
    Class, Collectives, Copies, DeviceTime, Links, Spans, StreamLoad, class, copies, devices,
    host_side,
};
pub use model::{
    Api, ApiKind, Builder, Call, Device, Direction, Kernel, Memory, Name, Names, Overflow, Range,
    RangeKind, Record, Rows, Source, Stream, StreamFlag, StreamIndex, Sync, SyncKind, Thread,
    ThreadIndex, Trace, Warning, What, Work,
};
pub use read::{Error, Limits, Problem, Progress, read, read_json};
