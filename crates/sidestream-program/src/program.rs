//! A stream program in memory: tables of names, and the list of calls.
//!
//! A program is a straight line, so every name is resolved while it is read.
//! Ops hold indices into the tables, and the tables are complete: names that
//! the format lets a program use without declaring them are in there too.

use sidestream::op::{DeviceId, Memory, StreamKind};

use crate::error::BadProgram;
use crate::expect::Expect;

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

/// Index into [`Program::streams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamRef(pub u32);

/// Index into [`Program::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferRef(pub u32);

/// Index into [`Program::events`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventRef(pub u32);

/// Index into [`Program::flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlagRef(pub u32);

/// Index into [`Program::graphs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphRef(pub u32);

/// Index into [`Program::threads`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadRef(pub u32);

/// Index into [`Program::sites`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteRef(pub u32);

/// One call of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The line of the text on which it starts, from 1; 0 if it was not read.
    pub line: usize,
    /// The host thread that makes the call.
    pub thread: ThreadRef,
    /// The call site; without one the op is its own site.
    pub site: Option<SiteRef>,
    /// The call.
    pub act: Act,
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

/// What a call does; one variant for each `do` of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A kernel launch.
    Kernel {
        /// The stream it is launched on.
        stream: StreamRef,
        /// What it reads.
        reads: Vec<Access>,
        /// What it writes.
        writes: Vec<Access>,
        /// How many equal launches stand for this one op; at least 1.
        repeat: u32,
    },
    /// An asynchronous copy.
    CopyAsync {
        /// The stream it is submitted to.
        stream: StreamRef,
        /// What it reads.
        from: Access,
        /// What it writes.
        to: Access,
    },
    /// An asynchronous memset.
    MemsetAsync {
        /// The stream it is submitted to.
        stream: StreamRef,
        /// What it writes.
        to: Access,
    },
    /// A blocking copy in the legacy stream of the caller's device.
    Copy {
        /// What it reads.
        from: Access,
        /// What it writes.
        to: Access,
    },
    /// A memset in the legacy stream of the caller's device.
    Memset {
        /// What it writes.
        to: Access,
    },
    /// A function on the host, in stream order.
    HostFunc {
        /// The stream it is submitted to.
        stream: StreamRef,
        /// What it reads, on the host.
        reads: Vec<Access>,
        /// What it writes, on the host.
        writes: Vec<Access>,
        /// The flag that it raises at its end.
        sets: Option<FlagRef>,
    },
    /// A replay of a graph.
    GraphLaunch {
        /// The stream it is launched on.
        stream: StreamRef,
        /// The graph.
        graph: GraphRef,
        /// All that the graph reads.
        reads: Vec<Access>,
        /// All that the graph writes.
        writes: Vec<Access>,
    },
    /// An event takes the content of a stream.
    Record {
        /// The event.
        event: EventRef,
        /// The stream.
        stream: StreamRef,
    },
    /// A stream waits for the last record of an event.
    Wait {
        /// The stream that waits.
        stream: StreamRef,
        /// The event.
        event: EventRef,
    },
    /// A stream waits for what another holds now.
    WaitStream {
        /// The stream that waits.
        stream: StreamRef,
        /// The stream that it waits for.
        source: StreamRef,
    },
    /// The caller waits for a stream.
    SyncStream {
        /// The stream.
        stream: StreamRef,
    },
    /// The caller waits for an event.
    SyncEvent {
        /// The event.
        event: EventRef,
    },
    /// The caller waits for every stream of a device.
    SyncDevice {
        /// The device; nothing for the caller's current one.
        device: Option<DeviceId>,
    },
    /// The caller asks whether a stream is done.
    QueryStream {
        /// The stream.
        stream: StreamRef,
        /// Whether the answer was "done".
        ready: bool,
    },
    /// The caller asks whether an event is complete.
    QueryEvent {
        /// The event.
        event: EventRef,
        /// Whether the answer was "complete".
        ready: bool,
    },
    /// The caller raises a flag.
    SetFlag {
        /// The flag.
        flag: FlagRef,
    },
    /// The caller waits until a flag is raised.
    WaitFlag {
        /// The flag.
        flag: FlagRef,
    },
    /// The caller reads host or managed memory.
    HostRead {
        /// What it reads.
        access: Access,
    },
    /// The caller writes host or managed memory.
    HostWrite {
        /// What it writes.
        access: Access,
    },
    /// The caching allocator hands out a buffer.
    Alloc {
        /// The buffer.
        buffer: BufferRef,
        /// Its home stream; nothing for the cache of pinned memory.
        stream: Option<StreamRef>,
        /// The bytes of an earlier buffer that it lies on; nothing for fresh ones.
        over: Option<Access>,
        /// Whether the allocator saw the events of the free of `over` complete.
        after_events: bool,
        /// The buffer whose block it has to be (runtime level).
        must_alias: Option<BufferRef>,
        /// The buffer whose block it must not be (runtime level).
        must_not_alias: Option<BufferRef>,
    },
    /// The last reference to a buffer of the caching allocator dies.
    Free {
        /// The buffer.
        buffer: BufferRef,
    },
    /// Notes a stream that uses a buffer, for its free.
    RecordStream {
        /// The buffer.
        buffer: BufferRef,
        /// The stream.
        stream: StreamRef,
    },
    /// A stream-ordered allocation.
    MallocAsync {
        /// The buffer.
        buffer: BufferRef,
        /// The stream.
        stream: StreamRef,
    },
    /// A stream-ordered free.
    FreeAsync {
        /// The buffer.
        buffer: BufferRef,
        /// The stream.
        stream: StreamRef,
    },
    /// An allocation that orders nothing.
    CudaMalloc {
        /// The buffer.
        buffer: BufferRef,
    },
    /// The end of device memory; no wait may be counted on.
    CudaFree {
        /// The buffer.
        buffer: BufferRef,
    },
    /// The end of pinned memory; no wait may be counted on.
    FreePinned {
        /// The buffer.
        buffer: BufferRef,
    },
    /// The time from one event to another.
    Elapsed {
        /// The earlier event, `a`.
        start: EventRef,
        /// The later event, `b`.
        end: EventRef,
    },
    /// From here the event is one that was never recorded.
    CreateEvent {
        /// The event.
        event: EventRef,
    },
    /// From here the event is one that was never recorded.
    DestroyEvent {
        /// The event.
        event: EventRef,
    },
    /// Makes a stream; orders nothing.
    CreateStream {
        /// The stream.
        stream: StreamRef,
    },
    /// Destroys a stream; orders nothing and does not wait.
    DestroyStream {
        /// The stream.
        stream: StreamRef,
    },
    /// Sets the current device of the calling thread.
    SetDevice {
        /// The device.
        device: DeviceId,
    },
    /// Begins a capture.
    BeginCapture {
        /// The stream.
        stream: StreamRef,
    },
    /// Ends a capture.
    EndCapture {
        /// The stream.
        stream: StreamRef,
    },
    /// The simulated device stops executing a stream (runtime level).
    SimHold {
        /// The stream.
        stream: StreamRef,
    },
    /// The simulated device resumes executing a stream (runtime level).
    SimRelease {
        /// The stream.
        stream: StreamRef,
    },
    /// Limits memory to that many equal blocks (runtime level).
    SetCapacity {
        /// How many blocks.
        blocks: u32,
    },
    /// Asks the stream pool several times (runtime level).
    PoolGet {
        /// How often; at least 1.
        count: u32,
        /// The name of the first stream handed out.
        first: StreamRef,
        /// The name of the last stream handed out.
        last: StreamRef,
    },
}

impl Act {
    /// What the format calls it, under `do`.
    pub fn verb(&self) -> &'static str {
        match self {
            Act::Kernel { .. } => "kernel",
            Act::CopyAsync { .. } => "copy_async",
            Act::MemsetAsync { .. } => "memset_async",
            Act::Copy { .. } => "copy",
            Act::Memset { .. } => "memset",
            Act::HostFunc { .. } => "host_func",
            Act::GraphLaunch { .. } => "graph_launch",
            Act::Record { .. } => "record",
            Act::Wait { .. } => "wait",
            Act::WaitStream { .. } => "wait_stream",
            Act::SyncStream { .. } => "sync_stream",
            Act::SyncEvent { .. } => "sync_event",
            Act::SyncDevice { .. } => "sync_device",
            Act::QueryStream { .. } => "query_stream",
            Act::QueryEvent { .. } => "query_event",
            Act::SetFlag { .. } => "set_flag",
            Act::WaitFlag { .. } => "wait_flag",
            Act::HostRead { .. } => "host_read",
            Act::HostWrite { .. } => "host_write",
            Act::Alloc { .. } => "alloc",
            Act::Free { .. } => "free",
            Act::RecordStream { .. } => "record_stream",
            Act::MallocAsync { .. } => "malloc_async",
            Act::FreeAsync { .. } => "free_async",
            Act::CudaMalloc { .. } => "cuda_malloc",
            Act::CudaFree { .. } => "cuda_free",
            Act::FreePinned { .. } => "free_pinned",
            Act::Elapsed { .. } => "elapsed",
            Act::CreateEvent { .. } => "create_event",
            Act::DestroyEvent { .. } => "destroy_event",
            Act::CreateStream { .. } => "create_stream",
            Act::DestroyStream { .. } => "destroy_stream",
            Act::SetDevice { .. } => "set_device",
            Act::BeginCapture { .. } => "begin_capture",
            Act::EndCapture { .. } => "end_capture",
            Act::SimHold { .. } => "sim_hold",
            Act::SimRelease { .. } => "sim_release",
            Act::SetCapacity { .. } => "set_capacity",
            Act::PoolGet { .. } => "pool_get",
        }
    }
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
    pub fn event(&self, name: &str) -> Option<EventRef> {
        position(&self.events, |event| event.name == name).map(EventRef)
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
