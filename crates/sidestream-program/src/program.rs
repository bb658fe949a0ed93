//! A stream program in memory: tables of names, and the list of calls.
//!
//! A program is a straight line, so every name is resolved while it is read.
//! Ops hold indices into the tables, and the tables are complete: names that
//! the format lets a program use without declaring them are in there too.

use sidestream::op::{DeviceId, EventId, FlagId, GraphId, Memory, SiteId, StreamKind, ThreadId};

use crate::error::BadProgram;
use crate::expect::Expect;
use crate::verbs::Verb;

/// What one file holds: a program, or the list under `cases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The programs in the order of the file; one that breaks the format does
    /// not keep the others from being read.
    pub programs: Vec<Result<Program, Box<BadProgram>>>,
}

/// A list of calls and the names that they use.
///
/// Each table lists declared names first, in the order of their declaration,
/// and then the others in the order of their first use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// What it needs to be run.
    pub level: Level,
    /// All streams.
    pub streams: Vec<StreamDecl>,
    /// All buffers.
    pub buffers: Vec<BufferDecl>,
    /// All events.
    pub events: Vec<EventDecl>,
    /// Names of all flags.
    pub flags: Vec<String>,
    /// Names of all graphs.
    pub graphs: Vec<String>,
    /// Names of all host threads; `t0` is always the first.
    pub threads: Vec<String>,
    /// Names of all call sites.
    pub sites: Vec<String>,
    /// The calls, in the order in which they are made.
    pub ops: Vec<Op>,
    /// What a right answer is.
    pub expect: Option<Expect>,
    /// Where the program comes from, for people.
    pub from: Option<String>,
    /// A remark for people.
    pub note: Option<String>,
    /// Numbers of the rules that the program is about, for people.
    pub rules: Vec<u32>,
}

/// What a program needs to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Level {
    /// Nothing but a checker.
    #[default]
    Checker,
    /// The simulated device and the caching allocator.
    Runtime,
}

/// A stream of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamDecl {
    /// Its name.
    pub name: String,
    /// How it orders itself against the legacy default stream.
    pub kind: StreamKind,
    /// Its device.
    pub device: DeviceId,
    /// How urgent its kernels are, as declared: lower is more urgent. A device takes the nearest that it has.
    pub priority: i32,
    /// How the program came by it.
    pub origin: Origin,
}

/// How a program came by a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It stands under `streams`.
    Declared,
    /// It is one of `s0` to `s99`, which need no declaration.
    Implicit,
    /// A `pool_get` names it. Which stream of the pool a name stands for
    /// changes with every `pool_get` that names it again.
    Pool,
}

/// A buffer of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferDecl {
    /// Its name.
    pub name: String,
    /// The memory that it lies in.
    pub memory: Memory,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it goes without a declaration.
    pub implicit: bool,
}

/// An event of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDecl {
    /// Its name.
    pub name: String,
    /// Whether it takes the time.
    pub timing: bool,
    /// The device it was created on, if it may be recorded on that one only.
    pub device: Option<DeviceId>,
    /// Whether it goes without a declaration.
    pub implicit: bool,
}

/// A name of a stream: its index into [`Program::streams`]. Which stream it stands for may change as the
/// program goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamRef(pub u32);

/// A name of a buffer: its index into [`Program::buffers`]. Each time it is handed out it stands for another
/// tenancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferRef(pub u32);

/// One call of a program. The ids of threads, sites, events, flags and graphs are indices into the tables of
/// the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The line of the text on which it starts, from 1; 0 if it was not read.
    pub line: usize,
    /// The host thread that makes the call.
    pub thread: ThreadId,
    /// The call site; without one the op is its own site.
    pub site: Option<SiteId>,
    /// What is called.
    pub verb: Verb,
    /// What it is called with.
    pub fields: Fields,
}

/// What the fields of an op say. Which of them it has, its verb says; the others are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// The stream that the call is about; the first one of a `pool_get`.
    pub stream: Option<StreamRef>,
    /// The stream that is waited for; the last one of a `pool_get`.
    pub source: Option<StreamRef>,
    /// The event that the call is about; the earlier one of an `elapsed`.
    pub event: Option<EventId>,
    /// The later event of an `elapsed`.
    pub later: Option<EventId>,
    /// The flag that is raised or waited for.
    pub flag: Option<FlagId>,
    /// The graph that is launched.
    pub graph: Option<GraphId>,
    /// The buffer whose life the call is about.
    pub buffer: Option<BufferRef>,
    /// What is read.
    pub reads: Vec<Access>,
    /// What is written.
    pub writes: Vec<Access>,
    /// The bytes of an earlier buffer that an allocation lies on; fresh ones if absent.
    pub over: Option<Access>,
    /// The device; the caller's current one if absent.
    pub device: Option<DeviceId>,
    /// How many launches, blocks, or streams of the pool.
    pub number: Option<u32>,
    /// Whether a query was answered "done", or an allocator saw the events of the free of `over` complete.
    pub yes: bool,
    /// The buffer whose block an allocation has to be (runtime level).
    pub must_alias: Option<BufferRef>,
    /// The buffer whose block an allocation must not be (runtime level).
    pub must_not_alias: Option<BufferRef>,
}

/// A use of a buffer, or of a range of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferRef,
    /// First byte and the byte after the last; nothing for the whole buffer.
    /// Both alike is a use that touches nothing.
    pub range: Option<(u64, u64)>,
}

impl Program {
    /// The stream of that name.
    pub fn stream(&self, name: &str) -> Option<StreamRef> {
        position(&self.streams, |stream| stream.name == name).map(StreamRef)
    }

    /// The buffer of that name.
    pub fn buffer(&self, name: &str) -> Option<BufferRef> {
        position(&self.buffers, |buffer| buffer.name == name).map(BufferRef)
    }

    /// The event of that name.
    pub fn event(&self, name: &str) -> Option<EventId> {
        position(&self.events, |event| event.name == name).map(EventId)
    }

    /// First byte of an access and the byte after its last.
    ///
    /// Panics if the access belongs to another program.
    #[track_caller]
    pub fn range(&self, access: Access) -> (u64, u64) {
        let whole = (0, self.buffers[access.buffer.0 as usize].size_bytes);
        access.range.unwrap_or(whole)
    }

    /// Sets the line of every op to 0, to compare programs that were written
    /// differently.
    pub fn forget_lines(&mut self) {
        for op in &mut self.ops {
            op.line = 0;
        }
    }
}

fn position<T>(table: &[T], is_it: impl FnMut(&T) -> bool) -> Option<u32> {
    // Tables are shorter than their text, which is shorter than 4 GiB.
    table.iter().position(is_it).map(|at| at as u32)
}
