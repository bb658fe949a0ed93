//! A stream program in memory: tables of names, and the list of calls.
//!
//! A program has no control flow, so every name is resolved while it is read. Ops refer to the tables by index. The
//! tables are complete: they include the names that the format lets a program use without a declaration.

use sidestream::op::{
    Compare, DeviceId, EventId, FlagId, GraphId, Memory, OpId, SiteId, SourceOrder, StreamKind,
    ThreadId,
};

use crate::error::BadProgram;
use crate::expect::Expect;
use crate::verbs::Verb;

/// The contents of one file: a program, or the list under `cases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Programs in the order of the file; one that breaks the format does not prevent the others from being read.
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
    /// What is needed to run the program.
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
    /// Expected result of a check.
    pub expect: Option<Expect>,
    /// Origin of the program, for readers.
    pub from: Option<String>,
    /// A note for readers.
    pub note: Option<String>,
    /// Numbers of the rules that the program demonstrates, for readers.
    pub rules: Vec<u32>,
}

/// What is needed to run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Level {
    /// Only a checker.
    #[default]
    Checker,
    /// The simulated device and the caching allocator.
    Runtime,
}

/// A stream of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamDecl {
    /// Name of the stream.
    pub name: String,
    /// How the stream is ordered with respect to the legacy default stream.
    pub kind: StreamKind,
    /// Device of the stream.
    pub device: DeviceId,
    /// Declared priority of its kernels: lower is more urgent. A device uses the nearest one that it supports.
    pub priority: i32,
    /// How the stream got into the program.
    pub origin: Origin,
}

/// How a stream got into a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It is declared under `streams`.
    Declared,
    /// It is one of `s0` to `s99`, which need no declaration.
    Implicit,
    /// A `pool_get` names it. Each further `pool_get` with this name may make it refer to another stream of the pool.
    Pool,
}

/// A buffer of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferDecl {
    /// Name of the buffer.
    pub name: String,
    /// Kind of memory.
    pub memory: Memory,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the buffer needs no declaration.
    pub implicit: bool,
}

/// An event of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDecl {
    /// Name of the event.
    pub name: String,
    /// Whether the event has timing.
    pub timing: bool,
    /// The device that it was created on, if it may only be recorded there.
    pub device: Option<DeviceId>,
    /// Whether the event needs no declaration.
    pub implicit: bool,
}

/// A name of a stream: its index into [`Program::streams`]. Ops may change which stream it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamRef(pub u32);

/// A name of a buffer: its index into [`Program::buffers`]. Each allocation makes it refer to another tenancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferRef(pub u32);

/// One call of a program. The ids of threads, sites, events, flags and graphs are indices into the tables of
/// the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Line of the text where it starts, from 1; 0 if it was not read from text.
    pub line: usize,
    /// The host thread that makes the call.
    pub thread: ThreadId,
    /// The call site; without one the op is its own site.
    pub site: Option<SiteId>,
    /// The call.
    pub verb: Verb,
    /// Arguments of the call.
    pub fields: Fields,
}

/// The fields of an op. Its verb determines which fields it has; the others are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// Stream of the call; for a `pool_get` the first stream.
    pub stream: Option<StreamRef>,
    /// Stream that is waited for; for a `pool_get` the last stream.
    pub source: Option<StreamRef>,
    /// Event of the call; for an `elapsed` the earlier event.
    pub event: Option<EventId>,
    /// Later event of an `elapsed`.
    pub later: Option<EventId>,
    /// Flag that is raised or waited for.
    pub flag: Option<FlagId>,
    /// Graph that is launched.
    pub graph: Option<GraphId>,
    /// Buffer that is allocated or freed.
    pub buffer: Option<BufferRef>,
    /// Accesses that read.
    pub reads: Vec<Access>,
    /// Accesses that write.
    pub writes: Vec<Access>,
    /// Accesses that read or write; it is not known which.
    pub may_write: Vec<Access>,
    /// Accesses that are atomic.
    pub atomic: Vec<Access>,
    /// Bytes of an earlier buffer that an allocation uses; fresh ones if absent.
    pub over: Option<Access>,
    /// When a copy of a batch reads its source; in stream order if absent.
    pub source_order: Option<SourceOrder>,
    /// The comparison that ends a wait for a value; at least as large if absent.
    pub compare: Option<Compare>,
    /// Device; the caller's current one if absent.
    pub device: Option<DeviceId>,
    /// Number of launches, blocks, or streams of the pool; value of a word of memory.
    pub number: Option<u32>,
    /// Whether a kernel is launched programmatically, a write of a value is not fenced, a query returned "done", or an allocator saw the events of the free of `over` complete.
    pub yes: bool,
    /// Buffer whose block an allocation is expected to get (runtime level).
    pub must_alias: Option<BufferRef>,
    /// Buffer whose block an allocation is expected not to get (runtime level).
    pub must_not_alias: Option<BufferRef>,
}

/// A use of a buffer, or of a range of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferRef,
    /// First byte and the byte after the last; none for the whole buffer. If both are equal, the access touches no
    /// bytes.
    pub range: Option<(u64, u64)>,
}

impl Access {
    /// The use of a whole buffer.
    pub(crate) fn whole(buffer: BufferRef) -> Access {
        let range = None;
        Access { buffer, range }
    }
}

impl Program {
    /// Returns the stream with this name.
    pub fn stream(&self, name: &str) -> Option<StreamRef> {
        position(&self.streams, |stream| stream.name == name).map(StreamRef)
    }

    /// Returns the buffer with this name.
    pub fn buffer(&self, name: &str) -> Option<BufferRef> {
        position(&self.buffers, |buffer| buffer.name == name).map(BufferRef)
    }

    /// Returns the event with this name.
    pub fn event(&self, name: &str) -> Option<EventId> {
        position(&self.events, |event| event.name == name).map(EventId)
    }

    /// Returns the first byte of an access and the byte after its last.
    ///
    /// Panics if the access belongs to another program.
    #[track_caller]
    pub fn range(&self, access: Access) -> (u64, u64) {
        let whole = (0, self.buffers[access.buffer.0 as usize].size_bytes);
        access.range.unwrap_or(whole)
    }

    /// Returns the name of an op's work: its site, or else its verb.
    pub(crate) fn name_of(&self, op: OpId) -> &str {
        let op = &self.ops[op.0 as usize];
        let site = op.site.map(|site| self.sites[site.0 as usize].as_str());
        site.unwrap_or(op.verb.name())
    }

    /// Sets the line of every op to 0, to compare programs that were written differently.
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
