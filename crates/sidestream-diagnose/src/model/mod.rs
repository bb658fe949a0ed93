//! What a trace holds, whoever wrote it.
//!
//! Rows are kept by kind, in the order of their starts, with names, streams and threads as numbers
//! into tables. No row is larger than 48 bytes, so that a trace of millions of them fits. All times
//! are whole nanoseconds of the trace's own clock.
//!
//! Readers fill a [`Builder`]. It knows no format: whatever is special about one stays in its
//! reader.

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

/// One trace, read.
#[derive(Debug)]
pub struct Trace {
    /// Who wrote it.
    pub source: Source,
    /// How many events the file holds, kept or not.
    pub events: u64,
    /// The place of the process among those that ran together, where the trace says it.
    pub rank: Option<u32>,
    /// How many processes ran together, where the trace says it.
    pub world: Option<u32>,
    /// What a step takes without the profiler, where it was timed.
    pub base: Base,
    /// The texts behind each [`Name`].
    pub names: Names,
    /// What is known of the devices, whether they did any work or not.
    pub devices: Vec<Device>,
    /// The streams that are named by any row.
    pub streams: Vec<Stream>,
    /// The threads that are named by any row.
    pub threads: Vec<Thread>,
    /// Kernels, copies and memsets: what devices did.
    pub work: Vec<Work>,
    /// Calls of CUDA's runtime and driver.
    pub calls: Vec<Call>,
    /// What the program did between its calls, by name.
    pub ranges: Vec<Range>,
    /// Waits as the profiler saw them, where it was asked to.
    pub syncs: Vec<Sync>,
    /// Records of events, where the trace has rows for them.
    pub records: Vec<Record>,
    /// The shapes of operators' inputs, where the profiler was asked for them.
    pub shapes: Vec<Shape>,
    /// Memory as it was taken and given back, where the profiler was asked for it.
    pub memory: Vec<Allocated>,
    /// How the longest kernel of each name was launched.
    pub launched: HashMap<Name, Launched>,
    /// What it exchanged with other ranks.
    pub exchanges: Exchanges,
    /// What a reader of the results has to know about the trace.
    pub warnings: Vec<Warning>,
}

words! {
    /// Who wrote a trace.
    pub enum Source {
        /// PyTorch's profiler, or another that writes its JSON.
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
    /// What it is called, or nothing.
    pub name: String,
    /// How many multiprocessors it has.
    pub sms: Option<u32>,
    /// The size of its memory.
    pub memory_bytes: Option<u64>,
    /// Its compute capability: major and minor.
    pub compute: Option<(u32, u32)>,
    /// How many engines for copies it has.
    pub copy_engines: Option<u32>,
}

/// A stream. Two processes, or two contexts, may use the same number for different streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The process that it belongs to; none where the trace does not say.
    pub process: Option<i64>,
    /// The device.
    pub device: i64,
    /// The context.
    pub context: i64,
    /// The number that the trace has for it.
    pub number: i64,
    /// What it waits for by itself, where the trace says so.
    pub flag: StreamFlag,
    /// Its priority, where the trace says so: lower is more urgent.
    pub priority: Option<i32>,
}

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamFlag {
    /// The trace does not say.
    #[default]
    Unknown,
    /// It is the legacy default stream itself.
    Null,
    /// It waits for the legacy default stream, and that for it.
    Blocking,
    /// It does not.
    NonBlocking,
}

/// A thread of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub process: i64,
    /// Its number.
    pub thread: i64,
    /// Its name, or nothing.
    pub name: String,
}

/// Names a stream of a [`Trace`]. No trace has more than sixteen bits can name: in millions of rows
/// the rest would be zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIndex(pub u16);

impl Part for StreamIndex {
    fn bits(self) -> u64 {
        self.0.into()
    }
}

/// Names a thread of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub u16);

/// Something that a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// What it was.
    pub what: What,
    /// Where it ran.
    pub stream: StreamIndex,
    /// The kernel's name, or what the profiler calls a copy.
    pub name: Name,
    /// The number that it shares with the call that asked for it; 0 for none.
    pub correlation: u32,
    /// The graph that it is a node of, as far as the trace says; 0 for none.
    pub graph: u32,
}

impl Work {
    /// When it ended.
    pub fn end_ns(&self) -> i64 {
        end_ns(self.start_ns, self.duration_ns)
    }

    /// Whether it is a copy between the host and a device that the program asked for.
    pub fn is_host_copy(&self) -> bool {
        matches!(
            self.what,
            What::Copy {
                direction: Direction::Upload | Direction::Download,
                ..
            }
        ) && !self.is_migration()
    }

    /// Whether pages of unified memory moved because somebody touched them: no call asks for that.
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

/// What a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It ran a kernel.
    Kernel(Kernel),
    /// It copied.
    Copy {
        /// Between what.
        direction: Direction,
        /// The memory that was read.
        from: Memory,
        /// The memory that was written.
        to: Memory,
        /// How much.
        bytes: u64,
    },
    /// It set memory to a value.
    Memset {
        /// The memory that was written.
        memory: Memory,
        /// How much.
        bytes: u64,
    },
}

/// The shape of a kernel, as far as the trace says; zeros where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// How many blocks.
    pub blocks: u32,
    /// How many threads in each.
    pub threads: u16,
    /// How many registers each thread takes.
    pub registers: u16,
    /// How much shared memory each block takes.
    pub shared_bytes: u32,
}

words! {
    /// Between what a copy went.
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
        /// The trace has a word that we do not know.
        Unknown = "unknown",
    }
}

words! {
    /// Kinds of memory.
    pub enum Memory {
        /// The trace does not say. It is never guessed.
        Unknown = "unknown",
        /// Memory of the host that the system may move.
        Pageable = "pageable",
        /// Memory of the host that stays where it is.
        Pinned = "pinned",
        /// Memory of a device.
        Device = "device",
        /// An array: memory of a device in a layout for textures.
        Array = "array",
        /// Managed memory, which moves by itself.
        Managed = "managed",
    }
}

/// A call of CUDA's runtime or driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it began.
    pub start_ns: i64,
    /// How long the host was in it.
    pub duration_ns: u64,
    /// The function, without the suffix of its version.
    pub name: Name,
    /// Who called.
    pub thread: ThreadIndex,
    /// The number that it shares with the work that it asked for; 0 for none.
    pub correlation: u32,
    /// What kind of function it is.
    pub api: Api,
}

impl Call {
    /// When it ended.
    pub fn end_ns(&self) -> i64 {
        end_ns(self.start_ns, self.duration_ns)
    }
}

/// What a thread did, by a name that the program or its framework gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub thread: ThreadIndex,
    /// What kind of name it is.
    pub kind: RangeKind,
}

impl Range {
    /// When it ended.
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
    /// What the profiler or the driver did for itself. Its thread says nothing.
    Overhead,
    /// A function of Python; read only if asked for.
    Python,
    /// A long call of the operating system: `read`, `poll`, a wait for a lock.
    System,
}

/// A wait that the profiler saw. Traces have these only if the profiler was asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// When it began.
    pub start_ns: i64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// What waited for what. The name of the call is more reliable where there is one.
    pub kind: SyncKind,
    /// The stream that was waited for, or that waits.
    pub stream: Option<StreamIndex>,
    /// The number that it shares with its call; 0 for none.
    pub correlation: u32,
    /// The number of the call that recorded the event; 0 where the trace does not know.
    pub record_correlation: u32,
}

/// What waited for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    /// The host for an event.
    Event,
    /// A stream for an event.
    StreamWait,
    /// The host for a stream.
    Stream,
    /// The host for all of a context.
    Context,
    /// Something else.
    Unknown,
}

/// A record of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream that it stands in.
    pub stream: StreamIndex,
    /// The event's number: used again after the event is destroyed.
    pub event: u64,
    /// A number that only this record has, where the trace has one; 0 for none.
    pub sync_id: u64,
    /// The number that it shares with its call; 0 for none.
    pub correlation: u32,
}

/// What a reader of the results has to know about the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// A short name that stays the same, such as `TRUNCATED`.
    pub code: &'static str,
    /// One sentence, lower case.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The end of something; files may state durations that lead out of the range of numbers.
fn end_ns(start_ns: i64, duration_ns: u64) -> i64 {
    start_ns.saturating_add_unsigned(duration_ns)
}

// A trace of millions of rows has to fit in memory.
const _: () = assert!(size_of::<Work>() <= 48);
const _: () = assert!(size_of::<Call>() <= 32);
const _: () = assert!(size_of::<Range>() <= 24);
const _: () = assert!(size_of::<Sync>() <= 40);
const _: () = assert!(size_of::<Record>() <= 32);
