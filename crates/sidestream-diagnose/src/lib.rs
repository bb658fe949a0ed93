//! Reads, measures and explains traces of GPU programs.
//!
//! [`read()`] takes a trace of any known kind and returns a [`Trace`]: what ran on each device and stream, which calls of the
//! host submitted it, and what the program itself named. [`Report::of`] returns the report on it.
//!
//! # What a report judges
//! [`Report::judged`] is the ordered list of the changes that a replay tried and that gain anything: the most valuable first,
//! by the likely gain, otherwise by the high end. Each has the [`Code`] of the cause that it removes, and the time by which it
//! shortens a step: the least, the likely, the most. [`Report::findings`] has the same with evidence, and also causes that no
//! replay judges: those have no likely gain, and [`Saving::high`] is the bound that the trace gives.
//!
//! ```
//! use sidestream_diagnose::{Limits, Options, Report, read_json};
//!
//! let file = br#"{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 5,
//!                  "args": {"device": 0, "stream": 7, "correlation": 1}}]}"#;
//! let report = Report::of(read_json(file, &Limits::default())?, &Options::default());
//! for one in &report.judged {
//!     let gain = one.gain_ns;
//!     println!("{} {} {} {}", one.code.as_str(), gain.likely, gain.low, gain.high);
//! }
//! for finding in &report.findings {
//!     println!("{} {}", finding.code.as_str(), finding.saving_ns.high);
//! }
//! # Ok::<(), sidestream_diagnose::Problem>(())
//! ```

mod compare;
mod digest;
mod excerpt;
mod findings;
mod idle;
mod initial;
mod measure;
mod model;
mod ranks;
mod read;
mod replay;
mod report;
mod sections;
mod show;
mod sort;
mod timeline;
mod words;

pub use compare::{COMPARE_SCHEMA, Comparison, Gate, Shift, Slowdown, Two, Verdict};
pub use digest::{Digest, Part, Parts};
pub use excerpt::{Excerpt, Gap};
pub use findings::{Code, Evidence, Finding, Judged, Saving, size, time};
pub use idle::{Because, Cause, Idle, Inside, Stretch};
pub use measure::{
    Blocking, Class, Collectives, Copies, DeviceMemory, DeviceTime, Holder, Launches, Line, Links,
    Node, Operator, PerStep, Ranges, RowKind, Shares, Spans, Step, Steps, StepsBy, StreamLoad,
    by_name, copies, devices,
};
pub use model::{
    Allocated, Api, ApiKind, Asked, Base, Builder, Call, Device, Direction, Exchange, ExchangeKind,
    Exchanges, Kernel, Launched, Memory, Name, Names, Overflow, ProcessGroup, Range, RangeKind,
    Record, Rows, Shape, Source, Stream, StreamFlag, StreamIndex, Sync, SyncKind, Thread,
    ThreadIndex, Trace, Unprofiled, Warning, What, Work,
};
pub use ranks::{Groups, Heat, RANKS_SCHEMA, Rank, Ranks, Search, Slow, Worst};
pub use read::{Error, Limits, Problem, Progress, read, read_json, traces};
pub use replay::{Change, Prediction, Replay, UnknownChange};
pub use report::{LINK_GB_PER_S, LISTED, Link, Options, Report, is_speed};
pub use show::{
    SCHEMA, Sort, TABLE_SCHEMA, Table, View, annotated, brief, comparison_text, gate_text, html,
    picture, plain, ranks_html, ranks_text, table_json, table_text, text,
};
pub use timeline::{Drawn, Lane, Shade, Timeline};
