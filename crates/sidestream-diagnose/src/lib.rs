//! Traces of GPU programs: read, measured, and explained.
//!
//! [`read()`] takes a trace of any known kind and gives a [`Trace`]: what ran on each device and
//! stream, which calls of the host asked for it, and what the program itself named.

mod compare;
mod excerpt;
mod findings;
mod idle;
mod measure;
mod model;
mod ranks;
mod read;
mod replay;
mod report;
mod show;
mod timeline;

pub use compare::{COMPARE_SCHEMA, Comparison, Shift, Two};
pub use excerpt::{Excerpt, Gap};
pub use findings::{Code, Evidence, Finding, Saving, size, time};
pub use idle::{Because, Cause, Idle, Inside, Stretch};
pub use measure::{
    Blocking, Class, Collectives, Copies, DeviceTime, Launches, Line, Links, PerStep, Spans, Step,
    Steps, StepsBy, StreamLoad, copies, devices,
};
pub use model::{
    Api, ApiKind, Builder, Call, Device, Direction, Kernel, Memory, Name, Names, Overflow, Range,
    RangeKind, Record, Rows, Source, Stream, StreamFlag, StreamIndex, Sync, SyncKind, Thread,
    ThreadIndex, Trace, Warning, What, Work,
};
pub use ranks::{RANKS_SCHEMA, Rank, Ranks};
pub use read::{Error, Limits, Problem, Progress, read, read_json, traces};
pub use replay::{Change, Prediction, Replay, UnknownChange};
pub use report::{LINK_GB_PER_S, LISTED, Link, Options, Report, SCHEMA, is_speed, kind};
pub use show::{annotated, brief, comparison_text, html, ranks_text, text};
pub use timeline::{Drawn, Lane, Shade, Timeline};
