//! The waist: the interface between the runtime and a GPU, real or simulated.
//!
//! A command is data: an [`Op`] says what is to be done and where it stands in the order, a [`Payload`] contains what
//! the machine needs to do it. The front end has checked both; a back end obeys. It does not check arguments again
//! and knows no ordering rule: it passes calls to its devices in the sequence in which it gets them.
//!
//! One back end serves all devices of its kind, so that it can carry out a wait between two of them. The front end
//! chooses the ids, which are dense, so that a back end can keep tables indexed by id. An id is created before it is
//! used and not used after it is destroyed; a stream's id is reused for another stream only after the back end was
//! told to destroy it.
//!
//! # Who promises what
//! Memory is named by addresses here, and only the front end knows who may use it when. So the waist is `unsafe` on
//! both sides: a back end promises by its `unsafe impl` that it touches only the memory that a call names, and a
//! caller that creates, destroys or uses something promises that it exists and belongs to the caller. Other crates
//! cannot reach memory without `unsafe`:
//!
//! ```compile_fail
//! use sidestream::backend::{Address, Backend};
//! use sidestream::op::{DeviceId, Memory};
//! fn take_from_others(machine: &dyn Backend, at: Address) {
//!     machine.unreserve(Memory::Pinned, DeviceId(0), at);
//! }
//! ```
//!
//! # Threads
//! Every function may be called from any thread at any time. Calls that name one stream arrive in the order in which
//! they are to run in it: the front end holds the stream's lock. A call that may block its caller
//! ([`may_block`](crate::order::may_block)) arrives without any lock, in no guaranteed order.

mod loaded;
pub(crate) mod shared;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::engine::KernelCost;
use crate::error::{Error, Result};
pub use loaded::Loaded;

use crate::op::{DeviceId, EventId, GraphId, Memory, Mode, Op, OpId, StreamId, StreamKind};

/// The machine that runs the work: a driver with its devices, or a simulation of one.
///
/// # Safety
/// Memory that it [reserves](Backend::reserve) exists in the size that was asked for, and has no other owner until it
/// is given back; host memory can be read and written by this process. An operation touches only the memory that its
/// call names, only in the range that the call states, and no longer once the back end has reported the operation
/// complete. Operations run in an order that [`order`](crate::order) allows for the submitted calls.
pub unsafe trait Backend: Send + Sync {
    /// Returns the capabilities of the devices, indexed by [`DeviceId`].
    fn devices(&self) -> &[Caps];

    /// Creates a stream, an event or a graph; the caller chooses the id.
    ///
    /// # Safety
    /// The id is not in use, or is that of the caller's own graph, which is to be updated. An adopted handle is of
    /// the stated kind and belongs to this device, until the id is destroyed.
    ///
    /// # Errors
    /// Any error that the driver returns; the id is then not in use.
    unsafe fn create(&self, what: Create<'_>) -> Result<()>;

    /// Destroys an object. Work that was submitted to it still runs (R12, R13). Never waits.
    ///
    /// # Safety
    /// The caller created it, and does not name it again.
    unsafe fn destroy(&self, what: Destroy);

    /// Reserves memory. The address is a device address or, for pinned and pageable memory, a host address; host
    /// memory is zeroed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory) if there is not enough; only its `asked_bytes` is
    /// meaningful then. [`Error::Refused`](crate::error::Error::Refused) if there is enough, but not at
    /// [`Reserve::at`].
    fn reserve(&self, wanted: Reserve) -> Result<Address>;

    /// Returns memory to the machine. May wait for the whole device.
    ///
    /// # Safety
    /// The caller reserved it, has seen all its uses complete, and touches it no more.
    unsafe fn unreserve(&self, memory: Memory, device: DeviceId, at: Address);

    /// Pins memory of the program, so that devices can access it like memory reserved as pinned.
    ///
    /// # Safety
    /// The memory exists, and is not moved or freed before [`unregister`](Backend::unregister).
    ///
    /// # Errors
    /// Any error that the driver returns, for instance because some of the memory is already pinned or the range is too
    /// large.
    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()>;

    /// Unpins memory. May wait for the whole device.
    ///
    /// # Safety
    /// The caller registered it, and has seen all its uses complete.
    unsafe fn unregister(&self, at: Address);

    /// Compiles and loads a kernel for a device, so that its first launch there does not have to.
    ///
    /// # Errors
    /// [`Error::NoForm`](crate::error::Error::NoForm) if the kernel has no form for this machine, or any error of the
    /// compiler or the driver.
    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()>;

    /// Submits a call to the device. Returns once the work is enqueued, not when it is complete, unless the call [may
    /// block](crate::order::may_block) its caller. Each kernel launch is a separate call: only in a program file does
    /// one operation stand for several launches.
    ///
    /// # Safety
    /// Streams, events and graphs that the call names belong to the caller. All memory that it names, or that the
    /// nodes of its graph name, exists in the stated size until the operation is complete; meanwhile host memory is
    /// accessed atomically or not at all where one of the two sides writes. A kernel stays within its arguments,
    /// which have the types of its parameters.
    ///
    /// # Errors
    /// Any error that the driver returns; nothing was enqueued then, and the caller has the memory back as if the call
    /// had not been made. If something was enqueued all the same, the error is
    /// [`Error::Submitted`](crate::error::Error::Submitted), or reports that the device is lost.
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()>;

    /// Returns whether a stream takes part in a capture, or is the legacy stream during one. Can also be called after a
    /// refused call, which may or may not have ended the capture. The query does not invalidate a capture. If the
    /// driver gives no answer, the result is true.
    fn is_captured(&self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Sets the calling thread's capture mode, with CUDA's numbers: the captures of all threads (0), only its own (1),
    /// or none (2) forbid it to allocate and to wait. Returns the previous mode. Has no effect where captures forbid
    /// nothing.
    fn capture_mode(&self, mode: i32) -> i32 {
        mode
    }

    /// Waits for all work on a device that this machine was given, without waiting for the device itself, which would
    /// invalidate captures of other code. Returns whether it is complete; `None` if only a wait for the device can tell.
    fn drain(&self, device: DeviceId) -> Option<bool> {
        let _ = device;
        None
    }

    /// Returns whether the work that the op asks about is complete: [`Kind::QueryEvent`](crate::op::Kind::QueryEvent)
    /// or [`Kind::QueryStream`](crate::op::Kind::QueryStream), whose own `done` is ignored here.
    ///
    /// # Errors
    /// The error of work that failed on the device; failure is never reported as `false`.
    fn query(&self, op: &Op) -> Result<bool>;

    /// Like [`query`](Backend::query), for callers that hold locks: it must not block, not even on a function that is
    /// running on the host, and may return `false` where [`query`](Backend::query) would return `true`.
    ///
    /// # Errors
    /// As for [`query`](Backend::query).
    fn peek(&self, op: &Op) -> Result<bool>;

    /// Waits for the work that the op names: [`Kind::SyncEvent`](crate::op::Kind::SyncEvent),
    /// [`Kind::SyncStream`](crate::op::Kind::SyncStream) or [`Kind::SyncDevice`](crate::op::Kind::SyncDevice).
    /// Returns false if `for_at_most` passes first; a simulation counts virtual time.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool>;

    /// Returns the nanoseconds on the device from one timed event to another, both complete.
    ///
    /// # Errors
    /// If one is not complete, or was made without timing.
    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64>;

    /// Returns the handle with which another process opens an event that was created by [`Create::Interprocess`].
    ///
    /// # Errors
    /// Any error that the driver returns.
    fn ipc_handle(&self, event: EventId) -> Result<[u8; 64]> {
        let _ = event;
        Err(no_interprocess())
    }

    /// Starts or stops recording when operations run.
    fn keep_times(&self, keep: bool);

    /// Appends the times of operations that have completed since they were last taken.
    fn take_times(&self, into: &mut Vec<Done>);

    /// Begins a named range of the calling thread, nested within the open ones; `None` ends the innermost range. For
    /// NVIDIA's profilers; elsewhere it does nothing.
    fn range(&self, name: Option<&str>) {
        let _ = name;
    }

    /// Returns the driver's handle of a stream, for other libraries; `None` where there is no driver.
    fn raw_stream(&self, stream: StreamId) -> Option<u64>;
}

/// While this value exists, calls of this thread do not invalidate captures of other threads: a program may capture a
/// graph while other threads allocate, free and wait for events.
pub(crate) struct BesideCaptures<'a> {
    backend: &'a dyn Backend,
    before: i32,
}

impl BesideCaptures<'_> {
    pub(crate) fn on(backend: &dyn Backend) -> BesideCaptures<'_> {
        /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
        const RELAXED: i32 = 2;
        let before = backend.capture_mode(RELAXED);
        BesideCaptures { backend, before }
    }
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        self.backend.capture_mode(self.before);
    }
}

/// Returns the error of a back end whose events no other process can open.
pub fn no_interprocess() -> Error {
    Error::Refused {
        call: "interprocess",
        // CUDA's code for "not supported".
        code: 801,
        why: "events of this device exist within one process only; use a CUDA device".into(),
    }
}

/// The capabilities of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Caps {
    /// Name, such as `sim:h200`.
    pub name: String,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Peak memory bandwidth, bytes per second, reads and writes together.
    pub memory_bytes_per_s: f64,
    /// Peak single-precision multiplications and additions per second.
    pub flops_per_s: f64,
    /// Bandwidth of one direction of its link to the host, bytes per second.
    pub link_bytes_per_s: f64,
    /// The most urgent and the least urgent priority of a stream; lower is more urgent.
    pub priorities: (i32, i32),
    /// Whether reserved memory can be extended at its end ([`Reserve::at`]), so that a copy may cross from the first
    /// reservation into the one that follows it. CUDA refuses such a copy, even if the driver happens to place the two
    /// contiguously.
    pub extends_memory: bool,
    /// Whether other processes can open its events ([`Create::Interprocess`]).
    pub shares_events: bool,
}

/// An address of device or host memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address this many bytes further.
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// A request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// The kind of memory.
    pub memory: Memory,
    /// The device that it belongs to; pinned and pageable memory belongs to all devices.
    pub device: DeviceId,
    /// Size in bytes.
    pub bytes: u64,
    /// The exact address, at the end of an earlier reservation; `None` for any address.
    pub at: Option<Address>,
    /// Whether pinned memory is write-combined: for data that the host writes and almost never reads, bypassing its
    /// caches.
    pub write_combined: bool,
}

impl Reserve {
    /// A request for memory at any address.
    pub fn new(memory: Memory, device: DeviceId, bytes: u64) -> Reserve {
        Reserve {
            memory,
            device,
            bytes,
            at: None,
            write_combined: false,
        }
    }
}

/// An object to be created.
#[derive(Clone, Copy, Debug)]
pub enum Create<'a> {
    /// A stream.
    Stream {
        /// Its id.
        id: StreamId,
        /// Its device.
        device: DeviceId,
        /// How the stream is ordered with others of its device. The default streams exist already; this gives them an
        /// id.
        kind: StreamKind,
        /// Priority within [`Caps::priorities`]; lower is more urgent.
        priority: i32,
        /// Name for traces and reports.
        name: &'a str,
        /// The driver's handle of an existing stream, which continues to belong to its owner.
        adopt: Option<u64>,
    },
    /// An event.
    Event {
        /// Its id.
        id: EventId,
        /// Its device.
        device: DeviceId,
        /// Whether the event records the device's time.
        timing: bool,
        /// Whether a thread that waits for the event sleeps instead of polling.
        sleeps: bool,
    },
    /// An event without timing that processes can share, if [`Caps::shares_events`] is set.
    Interprocess {
        /// Its id.
        id: EventId,
        /// Its device.
        device: DeviceId,
        /// The handle of another process's event to open; `None` makes a new event.
        from: Option<[u8; 64]>,
    },
    /// An executable graph. If the id names an existing graph, that graph is updated to these nodes without being
    /// instantiated again; launches that were submitted still do what it described before. The nodes must have the
    /// same kinds and dependencies as the old ones; otherwise the answer is
    /// [`Error::Refused`](crate::error::Error::Refused) with code 910, and the graph stays as it is.
    Graph {
        /// Its id.
        id: GraphId,
        /// Its device.
        device: DeviceId,
        /// Its nodes; each depends only on earlier ones. If empty, the graph is made from the oldest ended capture of
        /// the device that is not a graph yet, if there is one.
        nodes: &'a [Node],
    },
}

/// An object to be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Destroy {
    Stream(StreamId),
    Event(EventId),
    Graph(GraphId),
}

/// The data that the machine needs for an operation in addition to the op.
pub enum Payload<'a> {
    /// Nothing: for records, waits and other operations without data.
    None,
    /// A copy of bytes.
    Copy(Copy),
    /// Many small copies at once, done by a kernel that reads host memory: each has one row, from pinned memory to
    /// the stream's device.
    Gather(&'a [Copy]),
    /// A fill with a repeated pattern.
    Fill(Fill),
    /// A kernel.
    Launch(Launch<'a>),
    /// A function on the host. It catches its own panics.
    HostFunc(Box<dyn FnOnce() + Send>),
    /// The launch of an executable graph that was created before.
    Graph,
}

/// A copy of `rows` rows; a plain copy has one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Address of the first byte read.
    pub from: Address,
    /// Address of the first byte written.
    pub to: Address,
    /// Bytes in each row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes from the start of a row to the start of the next in the source.
    pub from_pitch: u64,
    /// Bytes from the start of a row to the start of the next in the destination.
    pub to_pitch: u64,
}

/// A fill of memory with a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Address of the first byte.
    pub at: Address,
    /// The pattern: the lowest `width` bytes, least significant first.
    pub value: u32,
    /// Width of the pattern in bytes: 1, 2 or 4.
    pub width: u8,
    /// Number of repetitions of the pattern.
    pub count: u64,
}

/// The launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub code: &'a Arc<Code>,
    /// The grid.
    pub grid: Grid,
    /// Arguments in the order of the kernel's parameters.
    pub args: &'a [Arg],
}

/// The number of blocks, and of threads in a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads per block in x, y and z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arg {
    /// Device memory, passed as its address.
    Memory {
        /// Address of the first byte.
        at: Address,
        /// Number of bytes that the kernel may touch.
        bytes: u64,
        /// Whether the kernel only reads the bytes, or may write them.
        mode: Mode,
    },
    /// A number of up to eight bytes, least significant first.
    Scalar {
        /// Bytes of the number.
        bytes: [u8; 8],
        /// Number of bytes that count.
        len: u8,
    },
}

impl Arg {
    /// Returns an argument that is a number of eight bytes.
    pub(crate) fn word(value: u64) -> Arg {
        Arg::Scalar {
            bytes: value.to_le_bytes(),
            len: 8,
        }
    }
}

/// A kernel, with all its forms.
pub struct Code {
    /// Name of the kernel, and of its entry point in the image.
    pub name: String,
    /// Code for a real device.
    pub image: Option<Image>,
    /// Code in Rust, for the simulated GPU.
    pub host: Option<HostForm>,
    /// Cost on the simulated GPU; without it the time follows from the bytes that the kernel touches.
    pub cost: Option<CostOf>,
    /// The place where a back end stores its handle of the loaded kernel.
    pub loaded: Loaded,
}

impl Code {
    /// Makes a kernel without any form.
    pub fn new(name: &str) -> Code {
        Code {
            name: name.to_owned(),
            image: None,
            host: None,
            cost: None,
            loaded: Loaded::default(),
        }
    }
}

/// Code for a real device.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Image {
    /// PTX, which the driver compiles.
    Ptx(String),
    /// CUDA C++, which NVRTC compiles first.
    Cuda(String),
}

/// A kernel in Rust: it gets copies of all memory that it may touch.
pub type HostForm = Box<dyn Fn(Grid, &mut [HostArg]) + Send + Sync>;
/// Computes the cost of one launch of a kernel.
pub type CostOf = Box<dyn Fn(Grid, &[Arg]) -> KernelCost + Send + Sync>;

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An argument of a kernel in Rust.
#[derive(Clone, Debug)]
pub enum HostArg {
    /// Memory with the content at the start of the kernel. The content when the function returns is written back if
    /// the argument's mode is `Write`.
    Memory(HostBytes),
    /// A number.
    Scalar {
        /// Bytes of the number.
        bytes: [u8; 8],
        /// Number of bytes that count.
        len: u8,
    },
}

/// Bytes with an alignment that suits any plain type.
#[derive(Clone, Debug, Default)]
pub struct HostBytes {
    words: Vec<u128>,
    len: usize,
}

impl HostBytes {
    /// Returns this many zero bytes.
    pub fn zeroed(len: usize) -> HostBytes {
        HostBytes {
            words: vec![0; len.div_ceil(16)],
            len,
        }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// One node of a graph.
#[derive(Debug)]
pub struct Node {
    /// The operation and its accesses. Its stream and its id are ignored.
    pub op: Op,
    /// The data that the machine needs for the operation.
    pub work: NodeWork,
    /// Indices of the nodes that it depends on, all of them earlier nodes.
    pub after: SmallVec<[u32; 4]>,
}

/// The payload of a node, which the graph owns.
#[derive(Debug)]
#[expect(missing_docs, reason = "as in `Payload`")]
pub enum NodeWork {
    Copy(Copy),
    Fill(Fill),
    Launch {
        code: Arc<Code>,
        grid: Grid,
        args: Vec<Arg>,
    },
}

/// When an operation ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The operation.
    pub op: OpId,
    /// Start and end of its call on the host, where known.
    pub call_ns: Option<(u64, u64)>,
    /// Start and end of its work on the device; `None` for an operation that involves only the host.
    pub work_ns: Option<(u64, u64)>,
}
