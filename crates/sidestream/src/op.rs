//! Operations: the calls of host threads, as plain data.
//!
//! Every call that has an effect is one immutable [`Op`]. The rule book ([`crate::order`]), the simulated GPU, the checker
//! and the trace writer all use the same operations, so a call without an `Op` cannot be ordered, checked, traced or
//! replayed.

// Matches list all kinds, so that a new kind does not compile until each match handles it.
#![deny(clippy::wildcard_enum_match_arm)]

mod kinds;

use std::fmt;

use smallvec::SmallVec;

#[doc(hidden)]
pub use kinds::Field;
pub use kinds::{Class, Named, Until};

/// A device, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceId(pub u32);

/// A stream. Ids are never reused: a stream created after another was destroyed has a new id, even where the driver reuses
/// the handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u32);

/// A host thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ThreadId(pub u32);

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EventId(pub u32);

/// A flag that one host thread (or a host function) sets and another waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlagId(pub u32);

/// An executable graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GraphId(pub u32);

/// A buffer: one allocation. Memory that is freed and allocated again is a new buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BufferId(pub u32);

/// A call site in the source of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// An operation, numbered in the order of the calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId(pub u32);

/// The kind of memory of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Memory {
    /// Device memory.
    #[default]
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Ordinary host memory.
    Pageable,
    /// Managed (unified) memory: host and device memory at once (R26).
    Managed,
}

impl Memory {
    /// Whether a copy treats this memory as host memory. Managed memory counts as device memory.
    pub fn is_host(self) -> bool {
        matches!(self, Memory::Pinned | Memory::Pageable)
    }
}

/// How a stream is ordered with other streams of its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamKind {
    /// Created with the non-blocking flag: no implicit order (R15).
    NonBlocking,
    /// Created without that flag: ordered with the legacy default stream (R14).
    Blocking,
    /// A thread's per-thread default stream: ordered with the legacy stream like a blocking stream (R18).
    PerThread,
    /// The legacy default stream of its device (R14, R42).
    Legacy,
}

impl StreamKind {
    /// Whether the legacy default stream and this stream wait for each other (R14, R18).
    pub fn is_blocking(self) -> bool {
        matches!(self, StreamKind::Blocking | StreamKind::PerThread)
    }

    /// Whether the stream exists without having been created, so that any code may use it.
    pub fn is_default(self) -> bool {
        matches!(self, StreamKind::Legacy | StreamKind::PerThread)
    }
}

/// Whether an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Only reads.
    Read,
    /// Writes, and possibly reads.
    Write,
    /// Reads or writes; it is not known which.
    MayWrite,
    /// Reads and writes atomically, for all threads of the GPU: two such accesses do not race with each other, but
    /// each does with a read or write beside it.
    Atomic,
}

/// When a copy of a batch reads its source, which its caller chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SourceOrder {
    /// In the order of the stream (R61).
    #[default]
    Stream,
    /// During the call, even before earlier work of the stream (R62).
    DuringCall,
    /// At any time from the call on, even before earlier work of the stream and after the call (R63).
    Any,
}

/// When a wait for a value in memory ends: if the comparison of the value in memory with that of the wait holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Compare {
    /// It is at least as large, as the difference of the two is not negative.
    #[default]
    AtLeast,
    /// It is equal.
    Equal,
    /// They have a bit in common.
    And,
    /// There is a bit that neither has.
    Nor,
}

impl Compare {
    /// Whether a wait for `awaited` ends when memory holds `found`.
    pub fn holds(self, found: u32, awaited: u32) -> bool {
        match self {
            Compare::AtLeast => found.wrapping_sub(awaited) as i32 >= 0,
            Compare::Equal => found == awaited,
            Compare::And => found & awaited != 0,
            Compare::Nor => !(found | awaited) != 0,
        }
    }
}

/// Bytes `start..end` of a buffer, read or written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub start: u64,
    /// One past the last byte. An access with `start == end` touches nothing.
    pub end: u64,
    /// Whether the access reads or writes.
    pub mode: Mode,
}

impl Access {
    /// Returns the number of bytes that the access touches.
    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the two are a race, or may be one, if they have bytes in common and nothing orders them. Owners of the
    /// same memory one after the other conflict by atomic accesses, too.
    pub fn conflicts_with(&self, other: &Access) -> bool {
        match (self.mode, other.mode) {
            (Mode::Read, Mode::Read) => false,
            (Mode::Atomic, Mode::Atomic) => self.buffer != other.buffer,
            _ => true,
        }
    }
}

/// The accesses of one operation; a copy lists its source, then its destination.
pub type Accesses = SmallVec<[Access; 3]>;

/// One call, as data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// Its number, in call order.
    pub id: OpId,
    /// The calling thread.
    pub thread: ThreadId,
    /// Its call site.
    pub site: SiteId,
    /// The kind of call.
    pub kind: Kind,
    /// The bytes that the call touches. A free is listed as a write of the whole buffer.
    pub accesses: Accesses,
}

/// The kind of an [`Op`], with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A kernel, launched `launches` times in a row.
    Kernel {
        /// The stream in which the kernel runs.
        stream: StreamId,
        /// The number of equal launches that this operation represents; at least one.
        launches: u32,
    },
    /// A kernel of a programmatic dependent launch: it may start before the kernel before it in the stream is complete,
    /// unless it waits for that one itself, which no call shows (R66).
    DependentKernel {
        /// The stream in which the kernel runs.
        stream: StreamId,
        /// Whether the kernel may wait itself before it touches memory; else its accesses were seen to come before it does.
        may_wait: bool,
    },
    /// `cudaMemcpyAsync`.
    Copy {
        /// The stream in which the copy runs.
        stream: StreamId,
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
    },
    /// One copy of a `cudaMemcpyBatchAsync` (R61 to R63).
    CopyBatch {
        /// The stream in which the copy runs.
        stream: StreamId,
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
        /// When the source is read.
        source: SourceOrder,
    },
    /// `cudaMemcpyPeerAsync`: between memory of two devices.
    CopyPeer {
        /// The stream in which the copy runs, on one of the two devices.
        stream: StreamId,
        /// The other device.
        peer: DeviceId,
    },
    /// `cudaMemsetAsync`.
    Memset {
        /// The stream in which the memset runs.
        stream: StreamId,
    },
    /// `cudaMemcpy`: in the legacy stream of the thread's device; blocks according to R19 to R23.
    CopyBlocking {
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
    },
    /// `cudaMemset`: in the legacy stream of the thread's device; blocks according to R24.
    MemsetBlocking {
        /// Memory of the target.
        to: Memory,
    },
    /// A host function, in stream order.
    HostFunc {
        /// The stream whose later work waits for the function.
        stream: StreamId,
        /// A flag that the function sets when it is complete.
        raises: Option<FlagId>,
    },
    /// A launch of an executable graph.
    GraphLaunch {
        /// The stream in which the graph runs.
        stream: StreamId,
        /// The graph.
        graph: GraphId,
    },
    /// `cudaMallocAsync`: the memory may be used in the order of this stream (R33).
    MallocAsync {
        /// The stream.
        stream: StreamId,
    },
    /// `cudaFreeAsync` (R34).
    FreeAsync {
        /// The stream.
        stream: StreamId,
    },
    /// `cudaEventRecord`.
    Record {
        /// The event that captures the stream's content.
        event: EventId,
        /// The stream.
        stream: StreamId,
    },
    /// `cudaStreamWaitEvent`.
    Wait {
        /// The stream whose later work waits.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
    /// `cuStreamWriteValue32`: writes a word of memory in the order of the stream (R64).
    WriteValue {
        /// The stream.
        stream: StreamId,
        /// The word: a flag for each address.
        word: FlagId,
        /// The value written; of a value of 64 bits the lower half.
        value: u32,
        /// Whether earlier writes of the stream are visible to work that sees the value: unless the call asks for no memory barrier.
        fenced: bool,
    },
    /// `cuStreamWaitValue32`: later work of the stream waits until a word of memory has a value (R64).
    WaitValue {
        /// The stream.
        stream: StreamId,
        /// The word.
        word: FlagId,
        /// The value that the word is compared with.
        value: u32,
        /// The comparison that ends the wait.
        compare: Compare,
    },
    /// A wait for what no call of the log shows, such as an event of another process or an external semaphore (R65).
    WaitOutside {
        /// The stream whose later work waits; the calling thread if `None`.
        stream: Option<StreamId>,
    },
    /// PyTorch's `stream.wait_stream(source)`: a record in one and a wait in the other (R50).
    WaitStream {
        /// The stream whose later work waits.
        stream: StreamId,
        /// The stream whose work so far is waited for.
        source: StreamId,
    },
    /// `cudaStreamSynchronize`.
    SyncStream {
        /// The stream.
        stream: StreamId,
    },
    /// `cudaEventSynchronize`.
    SyncEvent {
        /// The event.
        event: EventId,
    },
    /// `cudaDeviceSynchronize`.
    SyncDevice {
        /// The device; the thread's current one if `None`.
        device: Option<DeviceId>,
    },
    /// `cudaStreamQuery` and its result.
    QueryStream {
        /// The stream.
        stream: StreamId,
        /// Whether the result was that all work is complete.
        done: bool,
    },
    /// `cudaEventQuery` and its result.
    QueryEvent {
        /// The event.
        event: EventId,
        /// Whether the result was that all work is complete.
        done: bool,
    },
    /// The thread sets a flag (release).
    SetFlag {
        /// The flag.
        flag: FlagId,
    },
    /// The thread waits for a flag (acquire).
    WaitFlag {
        /// The flag.
        flag: FlagId,
    },
    /// The thread itself reads or writes memory.
    HostAccess,
    /// The caching allocator allocates a buffer whose home is `stream` (R52).
    Alloc {
        /// The buffer allocated.
        buffer: BufferId,
        /// The buffer's home stream; `None` for the cache of pinned memory.
        stream: Option<StreamId>,
        /// An earlier buffer of these bytes, if all events that its free recorded were seen to be complete.
        saw_events_of: Option<BufferId>,
    },
    /// `tensor.record_stream(stream)` (R53).
    RecordStream {
        /// The buffer.
        buffer: BufferId,
        /// The stream that is noted for the free.
        stream: StreamId,
    },
    /// The last reference to a buffer of the caching allocator is dropped (R52 to R54).
    Free {
        /// The buffer.
        buffer: BufferId,
    },
    /// `cudaMalloc` or `cudaHostAlloc`: adds no order (R31).
    CudaMalloc,
    /// `cudaFree`.
    CudaFree {
        /// Whether the memory came from `cudaMallocAsync` (R35).
        stream_ordered: bool,
    },
    /// `cudaFreeHost` (R27).
    FreePinned,
    /// `cudaHostUnregister` (R67).
    HostUnregister,
    /// `cudaEventElapsedTime`.
    Elapsed {
        /// The earlier event.
        from: EventId,
        /// The later event.
        to: EventId,
    },
    /// `cudaEventCreate`: the event counts as never recorded.
    CreateEvent {
        /// The event.
        event: EventId,
    },
    /// `cudaEventDestroy`: waits that are already enqueued stay valid (R12).
    DestroyEvent {
        /// The event.
        event: EventId,
    },
    /// `cudaStreamCreate`: adds no order and no wait.
    CreateStream {
        /// The new stream.
        stream: StreamId,
    },
    /// `cudaStreamDestroy`: returns at once, while pending work still runs (R13).
    DestroyStream {
        /// The stream.
        stream: StreamId,
    },
    /// `cudaSetDevice` for the calling thread.
    SetDevice {
        /// The new current device.
        device: DeviceId,
    },
    /// `cudaStreamBeginCapture`, global mode.
    BeginCapture {
        /// The stream in which the capture begins and must end.
        stream: StreamId,
    },
    /// `cudaStreamEndCapture`.
    EndCapture {
        /// The stream in which the capture began.
        stream: StreamId,
    },
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op {}", self.0)
    }
}
