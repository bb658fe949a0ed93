//! Operations: what host threads ask of devices, as plain data.
//!
//! Every call that has an effect is one immutable [`Op`]. The rule book ([`crate::order`]), the
//! simulated GPU, the checker and the trace writer all read the same ones, so what is not an `Op`
//! cannot be ordered, checked, traced or replayed.

// What is asked of kinds is listed for all of them: a new one is refused until it is decided upon.
#![deny(clippy::wildcard_enum_match_arm)]

mod kinds;

use std::fmt;

use smallvec::SmallVec;

pub(crate) use kinds::Field;
pub use kinds::{Class, Named, Until};

/// A device, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceId(pub u32);

/// A stream. One id is one stream forever: a stream created after another was destroyed is a
/// new id, even where the driver recycles the handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u32);

/// A host thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ThreadId(pub u32);

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EventId(pub u32);

/// A flag that one host thread (or a host function) raises and another waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlagId(pub u32);

/// An executable graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GraphId(pub u32);

/// A buffer: one tenancy of some memory. Freed and handed out again is another buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BufferId(pub u32);

/// A place in the caller's source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// An operation, numbered in the order of the calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId(pub u32);

/// What kind of memory a buffer is.
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
    /// Whether a copy treats it as the host's side. Managed memory counts as the device's.
    pub fn is_host(self) -> bool {
        matches!(self, Memory::Pinned | Memory::Pageable)
    }
}

/// How a stream takes part in the order of its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamKind {
    /// Created with the non-blocking flag: no implicit order at all (R15).
    NonBlocking,
    /// Created without it: ordered with the legacy default stream (R14).
    Blocking,
    /// A thread's per-thread default stream: as a blocking stream towards the legacy one (R18).
    PerThread,
    /// The legacy default stream of its device (R14, R42).
    Legacy,
}

impl StreamKind {
    /// Whether the legacy default stream and this stream wait for each other (R14, R18).
    pub fn is_blocking(self) -> bool {
        matches!(self, StreamKind::Blocking | StreamKind::PerThread)
    }

    /// Whether it is there without having been made, so that any code may use it.
    pub fn is_default(self) -> bool {
        matches!(self, StreamKind::Legacy | StreamKind::PerThread)
    }
}

/// Whether an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Only reads.
    Read,
    /// Writes (and perhaps reads).
    Write,
}

/// Bytes `start..end` of a buffer, read or written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub start: u64,
    /// One past the last byte. `start == end` touches nothing.
    pub end: u64,
    /// Read or write.
    pub mode: Mode,
}

impl Access {
    /// How many bytes it touches.
    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
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
    /// Where in the source it was called.
    pub site: SiteId,
    /// What was called.
    pub kind: Kind,
    /// The bytes it touches. The end of a buffer's life is listed as a write of all of it.
    pub accesses: Accesses,
}

/// What an [`Op`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A kernel, launched `launches` times in a row.
    Kernel {
        /// Where it runs.
        stream: StreamId,
        /// How many equal launches this operation stands for; at least one.
        launches: u32,
    },
    /// `cudaMemcpyAsync`.
    Copy {
        /// Where it runs.
        stream: StreamId,
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
    },
    /// `cudaMemcpyPeerAsync`: between memory of two devices.
    CopyPeer {
        /// Where it runs: a stream of one of the two devices.
        stream: StreamId,
        /// The other one.
        peer: DeviceId,
    },
    /// `cudaMemsetAsync`.
    Memset {
        /// Where it runs.
        stream: StreamId,
    },
    /// `cudaMemcpy`: in the legacy stream of the thread's device; blocks as R19 to R23 say.
    CopyBlocking {
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
    },
    /// `cudaMemset`: in the legacy stream of the thread's device; blocks as R24 says.
    MemsetBlocking {
        /// Memory of the target.
        to: Memory,
    },
    /// A function on the host, in stream order.
    HostFunc {
        /// The stream that it holds up while it runs.
        stream: StreamId,
        /// A flag that it raises when it is done.
        raises: Option<FlagId>,
    },
    /// A launch of an executable graph.
    GraphLaunch {
        /// Where it runs.
        stream: StreamId,
        /// Which graph.
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
        /// The event that takes the stream's content.
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
        /// The device; the thread's current one if absent.
        device: Option<DeviceId>,
    },
    /// `cudaStreamQuery` and its answer.
    QueryStream {
        /// The stream.
        stream: StreamId,
        /// Whether it answered "done".
        done: bool,
    },
    /// `cudaEventQuery` and its answer.
    QueryEvent {
        /// The event.
        event: EventId,
        /// Whether it answered "done".
        done: bool,
    },
    /// The thread raises a flag (release).
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
    /// The caching allocator hands out a buffer whose home is `stream` (R52).
    Alloc {
        /// The buffer handed out.
        buffer: BufferId,
        /// Its home stream; absent for the cache of pinned memory.
        stream: Option<StreamId>,
        /// The earlier tenant whose events, recorded when it was freed, were all seen complete.
        saw_events_of: Option<BufferId>,
    },
    /// `tensor.record_stream(stream)` (R53).
    RecordStream {
        /// The buffer.
        buffer: BufferId,
        /// The stream that is noted for the free.
        stream: StreamId,
    },
    /// The last reference to a buffer of the caching allocator dies (R52 to R54).
    Free {
        /// The buffer.
        buffer: BufferId,
    },
    /// `cudaMalloc` or `cudaHostAlloc`: no order (R31).
    CudaMalloc,
    /// `cudaFree`.
    CudaFree {
        /// Whether the memory came from `cudaMallocAsync` (R35).
        stream_ordered: bool,
    },
    /// `cudaFreeHost` (R27).
    FreePinned,
    /// `cudaEventElapsedTime`.
    Elapsed {
        /// The earlier event.
        from: EventId,
        /// The later event.
        to: EventId,
    },
    /// `cudaEventCreate`: from here the event has never been recorded.
    CreateEvent {
        /// The event.
        event: EventId,
    },
    /// `cudaEventDestroy`: waits already placed stay (R12).
    DestroyEvent {
        /// The event.
        event: EventId,
    },
    /// `cudaStreamCreate`: no order, no wait.
    CreateStream {
        /// The new stream.
        stream: StreamId,
    },
    /// `cudaStreamDestroy`: returns at once, the work still runs (R13).
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
        /// The stream where the capture starts and has to end.
        stream: StreamId,
    },
    /// `cudaStreamEndCapture`.
    EndCapture {
        /// The stream where the capture began.
        stream: StreamId,
    },
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op {}", self.0)
    }
}
