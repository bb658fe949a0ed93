//! The model of a trace, independent of who wrote it.
//!
//! Rows are kept by kind, in the order of their starts, with names, streams and threads as indices of tables. No row is larger
//! than 48 bytes, so that a trace of millions of rows fits into memory. All times are whole nanoseconds of the trace's own
//! clock.
//!
//! Readers fill a [`Builder`], which knows no file format: everything special about a format stays in its reader.

mod api;
mod base;
mod build;
mod exchange;
mod names;
mod room;
mod tables;

pub use api::{Api, ApiKind};
pub use base::{Base, Unprofiled};
pub use build::{Asked, Builder, Overflow, Rows};
pub use exchange::{Exchange, ExchangeKind, Exchanges, ProcessGroup};
pub use names::{Name, Names};
pub use room::{Limit, Room};
pub use tables::{Allocated, Launched, Shape};

use std::collections::HashMap;
use std::fmt;

use crate::sort::Part;
use crate::words::words;
use serde::Serialize;

/// A trace that has been read.
#[derive(Debug)]
pub struct Trace {
    /// The program that wrote it.
    pub source: Source,
    /// Number of events in the file, kept or not.
    pub events: u64,
    /// The rank of the process among those that ran together, where the trace states it.
    pub rank: Option<u32>,
    /// Number of ranks that ran together, where the trace states it.
    pub world: Option<u32>,
    /// The time of a step without the profiler, where it was measured.
    pub base: Base,
    /// The text of each [`Name`].
    pub names: Names,
    /// What is known of the devices, including those without work.
    pub devices: Vec<Device>,
    /// The streams that any row names.
    pub streams: Vec<Stream>,
    /// The threads that any row names.
    pub threads: Vec<Thread>,
    /// Kernels, copies and memsets: the work of devices.
    pub work: Vec<Work>,
    /// Calls of CUDA's runtime and driver.
    pub calls: Vec<Call>,
    /// Named spans of the program between its calls.
    pub ranges: Vec<Range>,
    /// Waits as the profiler recorded them, where it was asked to.
    pub syncs: Vec<Sync>,
    /// Records of events, where the trace has rows for them.
    pub records: Vec<Record>,
    /// The shapes of operators' inputs, where the profiler was asked for them.
    pub shapes: Vec<Shape>,
    /// Allocations and frees, where the profiler was asked for them.
    pub memory: Vec<Allocated>,
    /// How the longest kernel of each name was launched.
    pub launched: HashMap<Name, Launched>,
    /// Its exchanges with other ranks.
    pub exchanges: Exchanges,
    /// Warnings about the trace that affect the results.
    pub warnings: Vec<Warning>,
}

words! {
    /// The program that wrote a trace.
    pub enum Source {
        /// PyTorch's profiler, or another program that writes the same JSON format.
        Kineto = "pytorch",
        /// Nsight Systems, exported to SQLite.
        Nsight = "nsys",
        /// Sidestream itself.
        Sidestream = "sidestream",
    }
}

/// A device, as the trace describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub id: i64,
    /// Its name, or an empty string.
    pub name: String,
    /// Number of multiprocessors.
    pub sms: Option<u32>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Its compute capability: major and minor.
    pub compute: Option<(u32, u32)>,
    /// Number of copy engines.
    pub copy_engines: Option<u32>,
}

/// A stream. Two processes, or two contexts, may use the same number for different streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The process that it belongs to; `None` where the trace does not state it.
    pub process: Option<i64>,
    /// The device.
    pub device: i64,
    /// The context.
    pub context: i64,
    /// Its number in the trace.
    pub number: i64,
    /// What it waits for implicitly, where the trace states it.
    pub flag: StreamFlag,
    /// Its priority, where the trace states it: lower is more urgent.
    pub priority: Option<i32>,
}

/// How a stream synchronizes with the legacy default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamFlag {
    /// The trace does not say.
    #[default]
    Unknown,
    /// The legacy default stream itself.
    Null,
    /// The stream and the legacy default stream wait for each other.
    Blocking,
    /// The stream does not synchronize with the legacy default stream.
    NonBlocking,
}

/// A host thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub process: i64,
    /// Its number.
    pub thread: i64,
    /// Its name, or an empty string.
    pub name: String,
}

/// The index of a stream of a [`Trace`]. Sixteen bits are enough for every trace, and save memory in millions of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u16);

impl Part for StreamIndex {
    fn bits(self) -> u64 {
        self.0.into()
    }
}

/// The index of a thread of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub u16);

/// An operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Start of the operation.
    pub start_ns: i64,
    /// Duration of the operation.
    pub duration_ns: u64,
    /// What the operation was.
    pub what: What,
    /// The stream in which it ran.
    pub stream: StreamIndex,
    /// The name of the kernel, or the profiler's name for the copy.
    pub name: Name,
    /// The correlation number that it shares with the call that submitted it; 0 for none.
    pub correlation: u32,
    /// The graph of which it is a node, as far as the trace states it; 0 for none.
    pub graph: u32,
}

impl Work {
    /// Returns when it ended.
    pub fn end_ns(&self) -> i64 {
        end_ns(self.start_ns, self.duration_ns)
    }

    /// Returns whether it is a copy between the host and a device that the program asked for.
    pub fn is_host_copy(&self) -> bool {
        self.host_memory().is_some() && !self.is_migration()
    }

    /// Returns the kind of host memory in a copy between host and device.
    pub fn host_memory(&self) -> Option<Memory> {
        match (self.what.direction()?, self.what) {
            (Direction::Upload, What::Copy { from, .. }) => Some(from),
            (Direction::Download, What::Copy { to, .. }) => Some(to),
            _ => None,
        }
    }

    /// Returns whether it is a migration of unified memory on a page fault, which no call submits.
    pub fn is_migration(&self) -> bool {
        let is_managed = matches!(
            self.what,
            What::Copy {
                direction: Direction::Upload | Direction::Download | Direction::Peer,
                from: Memory::Managed,
                to: Memory::Managed,
                ..
            }
        );
        is_managed && self.correlation == 0
    }
}

/// What an operation of a device was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A kernel.
    Kernel(Kernel),
    /// A copy.
    Copy {
        /// The direction of the copy.
        direction: Direction,
        /// The memory that was read.
        from: Memory,
        /// The memory that was written.
        to: Memory,
        /// Bytes copied.
        bytes: u64,
    },
    /// A memset.
    Memset {
        /// The memory that was written.
        memory: Memory,
        /// Bytes set.
        bytes: u64,
    },
}

impl What {
    /// Returns the direction of a copy.
    pub fn direction(self) -> Option<Direction> {
        match self {
            What::Copy { direction, .. } => Some(direction),
            What::Kernel(_) | What::Memset { .. } => None,
        }
    }
}

/// The launch configuration of a kernel, as far as the trace states it; zeros where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Number of blocks.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u16,
    /// Registers per thread.
    pub registers: u16,
    /// Shared memory per block, in bytes.
    pub shared_bytes: u32,
}

words! {
    /// The direction of a copy.
    pub enum Direction {
        /// From the host to a device.
        Upload = "HtoD",
        /// From a device to the host.
        Download = "DtoH",
        /// Inside a device.
        OnDevice = "DtoD",
        /// From one device to another.
        Peer = "PtoP",
        /// Inside the host.
        OnHost = "HtoH",
        /// The trace has a word that is not known.
        Unknown = "unknown",
    }
}

words! {
    /// Kinds of memory.
    pub enum Memory {
        /// The trace does not state it. It is never guessed.
        Unknown = "unknown",
        /// Host memory that the operating system may move.
        Pageable = "pageable",
        /// Page-locked host memory.
        Pinned = "pinned",
        /// Memory of a device.
        Device = "device",
        /// An array: device memory in a layout for textures.
        Array = "array",
        /// Managed memory, whose pages migrate by themselves.
        Managed = "managed",
    }
}

/// A call of CUDA's runtime or driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Start of the call.
    pub start_ns: i64,
    /// Time that the host spent in it.
    pub duration_ns: u64,
    /// The function, without its version suffix.
    pub name: Name,
    /// The calling thread.
    pub thread: ThreadIndex,
    /// The correlation number that it shares with the work that it submitted; 0 for none.
    pub correlation: u32,
    /// The classification of the function.
    pub api: Api,
}

impl Call {
    /// Returns when it ended.
    pub fn end_ns(&self) -> i64 {
        end_ns(self.start_ns, self.duration_ns)
    }
}

/// A span of a thread with a name from the program or its framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Start of the range.
    pub start_ns: i64,
    /// Duration of the range.
    pub duration_ns: u64,
    /// Its name.
    pub name: Name,
    /// The thread that it is on.
    pub thread: ThreadIndex,
    /// The kind of range.
    pub kind: RangeKind,
}

impl Range {
    /// Returns when it ended.
    pub fn end_ns(&self) -> i64 {
        end_ns(self.start_ns, self.duration_ns)
    }
}

/// Kinds of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeKind {
    /// An operator of the framework.
    Operator,
    /// A range that the user named: `record_function`, NVTX.
    Annotation,
    /// A step of the profiler's schedule, `ProfilerStep#N`.
    Step,
    /// The profiler's or the driver's own work. Its thread is meaningless.
    Overhead,
    /// A Python function; read only if asked for.
    Python,
    /// A long operating system call: `read`, `poll`, a wait for a lock.
    System,
}

/// A wait that the profiler recorded. Traces have these only if the profiler was asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Start of the wait.
    pub start_ns: i64,
    /// Duration of the wait.
    pub duration_ns: u64,
    /// Which side waited, and for what. The name of the call is more reliable, where there is one.
    pub kind: SyncKind,
    /// The stream that was waited for, or that waited.
    pub stream: Option<StreamIndex>,
    /// The correlation number that it shares with its call; 0 for none.
    pub correlation: u32,
    /// The correlation number of the call that recorded the event; 0 where the trace does not state it.
    pub record_correlation: u32,
}

/// Which side waited, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    /// The host waited for an event.
    Event,
    /// A stream waited for an event.
    StreamWait,
    /// The host waited for a stream.
    Stream,
    /// The host waited for a whole context.
    Context,
    /// Something else.
    Unknown,
}

/// A record of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream in which it was recorded.
    pub stream: StreamIndex,
    /// The event's number, which is reused after the event is destroyed.
    pub event: u64,
    /// A number unique to this record, where the trace has one; 0 for none.
    pub sync_id: u64,
    /// The correlation number that it shares with its call; 0 for none.
    pub correlation: u32,
}

/// A warning about the trace that affects the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// A short code that does not change between versions, such as `TRUNCATED`.
    pub code: &'static str,
    /// One sentence, lower case.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the end of a span; files may state durations whose sum overflows.
fn end_ns(start_ns: i64, duration_ns: u64) -> i64 {
    start_ns.saturating_add_unsigned(duration_ns)
}

// A trace of millions of rows must fit in memory.
const _: () = assert!(size_of::<Work>() <= 48);
const _: () = assert!(size_of::<Call>() <= 32);
const _: () = assert!(size_of::<Range>() <= 24);
const _: () = assert!(size_of::<Sync>() <= 40);
const _: () = assert!(size_of::<Record>() <= 32);
