//! The waist between the runtime and a GPU, real or simulated.
//!
//! The command is data: an [`Op`] says what is asked and in what order it stands, a [`Payload`]
//! what the machine needs to carry it out. The front end has checked both; a back end obeys. It
//! checks no argument again and knows no rule of order: it hands each call to its device in the
//! sequence in which it gets them.
//!
//! One back end serves all devices of its kind, so that a wait between two of them has a place.
//! Ids are chosen by the front end and are dense: a back end keeps tables by id. An id is created
//! before it is named and not named after it is destroyed; a stream's id may come back for another
//! stream only if the back end was told to destroy it in between.
//!
//! # Who promises what
//! Memory is named by addresses here, and who may use it when is known to the front end alone. So the
//! waist is `unsafe` on both sides: a back end promises by its `unsafe impl` that it touches what it is
//! told to and nothing else, and whoever calls a verb that makes, gives back or uses something promises
//! that it is theirs and there. Other crates get nowhere near memory without saying so:
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
//! Every function may be called from any thread at any time. Calls that name one stream come in
//! the order in which they are to stand there: the front end holds the lock of the stream. A call that may hold up
//! its caller ([`may_hold_up`](crate::order::may_hold_up)) comes without any lock, in the order in which it happens to come.

mod loaded;
pub(crate) mod shared;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::engine::KernelCost;
use crate::error::{Error, Result};
pub use loaded::Loaded;

use crate::op::{DeviceId, EventId, GraphId, Memory, Mode, Op, OpId, StreamId, StreamKind};

/// What runs the work: a driver with its devices, or a simulation of one.
///
/// # Safety
/// What it [reserves](Backend::reserve) is there, as large as it was asked for, and nobody else's until it is given
/// back; if it is memory of the host, this process can read and write it. An operation touches no memory but what its
/// call names, for as much of it as the call says, and none of it any more once the back end has said that the operation
/// is over. Operations run in an order that [`order`](crate::order) allows for the calls that were submitted.
pub unsafe trait Backend: Send + Sync {
    /// What there is: the devices, by [`DeviceId`].
    fn devices(&self) -> &[Caps];

    /// Makes a stream, an event or a graph; the id is the caller's choice.
    ///
    /// # Safety
    /// The id stands for nothing, or for a graph of the caller's that is to be made anew. A handle that is
    /// adopted is what its kind says, of this device, until the id is destroyed.
    ///
    /// # Errors
    /// What the driver answers; then the id stands for nothing.
    unsafe fn create(&self, what: Create<'_>) -> Result<()>;

    /// Gives it back. Work that was submitted to it still runs (R12, R13). Never waits.
    ///
    /// # Safety
    /// The caller has made it, and names it no more.
    unsafe fn destroy(&self, what: Destroy);

    /// Takes memory from the machine. The address is a device's, or for pinned and for pageable
    /// memory the host's; memory of the host is zero.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory) if there is none; only
    /// `asked_bytes` means something then. [`Error::Refused`](crate::error::Error::Refused) if there
    /// is, and not at [`Reserve::at`].
    fn reserve(&self, wanted: Reserve) -> Result<Address>;

    /// Gives memory back to the machine. May wait for the whole device.
    ///
    /// # Safety
    /// The caller has reserved it, has seen all its uses complete, and touches it no more.
    unsafe fn unreserve(&self, memory: Memory, device: DeviceId, at: Address);

    /// Pins memory of the program, so that devices reach it as what was reserved as pinned.
    ///
    /// # Safety
    /// The memory is there, and stays where it is until [`unregister`](Backend::unregister).
    ///
    /// # Errors
    /// What the driver answers: some of it may be pinned already, or there is too much.
    unsafe fn register(&self, at: Address, bytes: u64) -> Result<()>;

    /// Unpins it. May wait for the whole device.
    ///
    /// # Safety
    /// The caller has registered it, and has seen all its uses complete.
    unsafe fn unregister(&self, at: Address);

    /// Makes a kernel ready for a device, which its first launch would do otherwise: compiles and
    /// loads what has to be.
    ///
    /// # Errors
    /// [`Error::NoForm`](crate::error::Error::NoForm) if it has no form for this machine, or what the
    /// compiler or the driver says.
    fn prepare(&self, device: DeviceId, code: &Arc<Code>) -> Result<()>;

    /// Hands a call to the device. Returns once it is queued, not when it has run, unless it is one that
    /// [may hold up](crate::order::may_hold_up) its caller. Each launch of a kernel is a call of its own: only programs
    /// that are written down have one operation stand for several.
    ///
    /// # Safety
    /// Streams, events and graphs that it names are the caller's. All memory that it names, or that the nodes of its
    /// graph name, is there until the operation is over, as large as is said; memory of the host is meanwhile touched
    /// atomically or not at all, where one of the two sides writes. A kernel keeps to its arguments, which are of the
    /// types of its parameters.
    ///
    /// # Errors
    /// What the driver answers; nothing was queued then, and the caller has the memory back as if the call had not been made. If
    /// something was queued all the same, [`Error::Submitted`](crate::error::Error::Submitted), or that the
    /// device is lost.
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()>;

    /// Whether a stream takes part in a capture, or is the legacy stream beside one: also behind a call that was
    /// refused, which may have ended the capture or not. To ask harms no capture. Without an answer it is "yes".
    fn is_captured(&self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Which captures forbid this thread to allocate and to wait from here on, by CUDA's numbers: those of all threads (0),
    /// its own (1), or none (2). Gives what held before. Means nothing where no capture forbids that.
    fn capture_mode(&self, mode: i32) -> i32 {
        mode
    }

    /// Whether what the op asks for is over: [`Kind::QueryEvent`](crate::op::Kind::QueryEvent) or
    /// [`Kind::QueryStream`](crate::op::Kind::QueryStream), whose own `done` means nothing here.
    ///
    /// # Errors
    /// What failed on the device; never "no".
    fn query(&self, op: &Op) -> Result<bool>;

    /// The same, asked while locks are held: it may not wait for anybody, also not for a function
    /// on the host that runs, and may answer "no" where [`query`](Backend::query) would say "yes".
    ///
    /// # Errors
    /// As [`query`](Backend::query).
    fn peek(&self, op: &Op) -> Result<bool>;

    /// Waits for what the op asks for: [`Kind::SyncEvent`](crate::op::Kind::SyncEvent),
    /// [`Kind::SyncStream`](crate::op::Kind::SyncStream) or
    /// [`Kind::SyncDevice`](crate::op::Kind::SyncDevice). False if `for_at_most` has passed first;
    /// a simulation counts virtual time.
    ///
    /// # Errors
    /// What failed on the device.
    fn wait(&self, op: &Op, for_at_most: Duration) -> Result<bool>;

    /// Nanoseconds on the device from one timed event to another, both complete.
    ///
    /// # Errors
    /// If one is not complete, or keeps no time.
    fn elapsed_ns(&self, from: EventId, to: EventId) -> Result<f64>;

    /// The handle by which another process opens an event of [`Create::Interprocess`].
    ///
    /// # Errors
    /// What the driver answers.
    fn ipc_handle(&self, event: EventId) -> Result<[u8; 64]> {
        let _ = event;
        Err(no_interprocess())
    }

    /// From here on it keeps when operations ran, or no longer.
    fn keep_times(&self, keep: bool);

    /// The times of operations that are over, since they were last taken.
    fn take_times(&self, into: &mut Vec<Done>);

    /// What the calling thread does from here on has this name, within the names before it; without one
    /// the last name ends. For profilers of the driver's maker; where there are none, nothing happens.
    fn range(&self, name: Option<&str>) {
        let _ = name;
    }

    /// The driver's handle of a stream, for other libraries. None where there is no driver.
    fn raw_stream(&self, stream: StreamId) -> Option<u64>;
}

/// What a back end answers whose events no other process can open.
pub fn no_interprocess() -> Error {
    Error::Refused {
        call: "interprocess",
        // CUDA's "not supported".
        code: 801,
        why: "events of this device exist within one process only; use a CUDA device".into(),
    }
}

/// What a device can do.
#[derive(Clone, PartialEq, Debug)]
pub struct Caps {
    /// Its name, such as `sim:h200`.
    pub name: String,
    /// All its memory.
    pub memory_bytes: u64,
    /// What it reads and writes in its memory at most, bytes a second.
    pub memory_bytes_per_s: f64,
    /// Multiplications and additions in single precision, at most, a second.
    pub flops_per_s: f64,
    /// What one direction of its link to the host carries, bytes a second.
    pub link_bytes_per_s: f64,
    /// The most urgent and the least urgent priority of a stream; lower is more urgent.
    pub priorities: (i32, i32),
    /// Whether its memory can be extended where it ends ([`Reserve::at`]), so that a copy may cross from what was reserved first to
    /// what was reserved behind it. CUDA refuses such a copy, even where the driver happens to put one behind the other.
    pub extends_memory: bool,
    /// Whether other processes can open its events ([`Create::Interprocess`]).
    pub shares_events: bool,
}

/// Where memory lies, as the back end counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address(pub u64);

impl Address {
    /// So many bytes further.
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// Memory that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// Of which kind.
    pub memory: Memory,
    /// The device that it belongs to; pinned and pageable memory belongs to all.
    pub device: DeviceId,
    /// How much.
    pub bytes: u64,
    /// Exactly here, behind what was reserved before; anywhere if absent.
    pub at: Option<Address>,
    /// Pinned memory that the host writes and nearly never reads: its writes pass by the caches.
    pub write_combined: bool,
}

impl Reserve {
    /// Memory anywhere.
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

/// Something to be made.
#[derive(Clone, Copy, Debug)]
pub enum Create<'a> {
    /// A stream.
    Stream {
        /// Its id.
        id: StreamId,
        /// Its device.
        device: DeviceId,
        /// How it takes part in the order of its device. The default streams exist already; this
        /// gives them their id.
        kind: StreamKind,
        /// Lower is more urgent; within [`Caps::priorities`].
        priority: i32,
        /// For people.
        name: &'a str,
        /// The driver's handle of a stream that exists already, which stays its owner's.
        adopt: Option<u64>,
    },
    /// An event.
    Event {
        /// Its id.
        id: EventId,
        /// Its device.
        device: DeviceId,
        /// Whether it keeps times.
        timing: bool,
        /// Whether a thread that waits for it sleeps, instead of asking again and again.
        sleeps: bool,
    },
    /// An event without timing that processes share, where [`Caps::shares_events`] says that there are such.
    Interprocess {
        /// Its id.
        id: EventId,
        /// Its device.
        device: DeviceId,
        /// The handle of an event of another process, which it becomes; a new event without one.
        from: Option<[u8; 64]>,
    },
    /// An executable graph. Where the id stands for one already, that one does what the nodes say from
    /// here on, without being made anew; launches that were submitted still do what it did before. The
    /// nodes have to be of the same kinds and stand behind each other as the old ones do: else the answer is
    /// [`Error::Refused`](crate::error::Error::Refused) with code 910, and the graph stays as it is.
    Graph {
        /// Its id.
        id: GraphId,
        /// Its device.
        device: DeviceId,
        /// Its nodes; each names earlier ones. With none it becomes the oldest capture of the device
        /// that has ended and is no graph yet, if there is one.
        nodes: &'a [Node],
    },
}

/// Something to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is what it says")]
pub enum Destroy {
    Stream(StreamId),
    Event(EventId),
    Graph(GraphId),
}

/// What the machine needs for an operation, beside its place in the order.
pub enum Payload<'a> {
    /// Nothing: records, waits and the like.
    None,
    /// Bytes from one place to another.
    Copy(Copy),
    /// Many small copies at once, by a kernel that reads the host's memory: each has one row, from
    /// pinned memory to the stream's device.
    Gather(&'a [Copy]),
    /// The same few bytes again and again.
    Fill(Fill),
    /// A kernel.
    Launch(Launch<'a>),
    /// A function on the host. It catches its own panics.
    HostFunc(Box<dyn FnOnce() + Send>),
    /// An executable graph that was made before.
    Graph,
}

/// A copy of `rows` rows; a plain copy has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The first byte read.
    pub from: Address,
    /// The first byte written.
    pub to: Address,
    /// Bytes in each row.
    pub row_bytes: u64,
    /// How many rows.
    pub rows: u64,
    /// From the start of a row to the start of the next, where it is read.
    pub from_pitch: u64,
    /// The same where it is written.
    pub to_pitch: u64,
}

/// Memory to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The first byte.
    pub at: Address,
    /// The pattern: the lowest `width` bytes, least significant first.
    pub value: u32,
    /// 1, 2 or 4.
    pub width: u8,
    /// How often the pattern is written.
    pub count: u64,
}

/// The launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Which.
    pub code: &'a Arc<Code>,
    /// Blocks and threads.
    pub grid: Grid,
    /// In the order of the kernel's parameters.
    pub args: &'a [Arg],
}

/// How many blocks of how many threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads a block in x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory a block.
    pub shared_bytes: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arg {
    /// Device memory, passed as its address.
    Memory {
        /// The first byte.
        at: Address,
        /// How many of them the kernel may touch.
        bytes: u64,
        /// Whether it writes them.
        mode: Mode,
    },
    /// A number of up to eight bytes, least significant first.
    Scalar {
        /// The number.
        bytes: [u8; 8],
        /// How many of the bytes count.
        len: u8,
    },
}

impl Arg {
    /// A number of eight bytes.
    pub(crate) fn word(value: u64) -> Arg {
        Arg::Scalar {
            bytes: value.to_le_bytes(),
            len: 8,
        }
    }
}

/// A kernel, in all the forms that it has.
pub struct Code {
    /// Its name; in an image its entry.
    pub name: String,
    /// What a real device runs.
    pub image: Option<Image>,
    /// The same in Rust, for the simulated GPU.
    pub host: Option<HostForm>,
    /// What it takes on the simulated GPU; without one it is bound by the bytes it touches.
    pub cost: Option<CostOf>,
    /// Where a back end notes what it has made of it.
    pub loaded: Loaded,
}

impl Code {
    /// A kernel without any form.
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
    /// CUDA C++, which has to be compiled first.
    Cuda(String),
}

/// A kernel in Rust: it gets copies of all that it may touch.
pub type HostForm = Box<dyn Fn(Grid, &mut [HostArg]) + Send + Sync>;
/// What one launch of a kernel takes.
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
    /// Memory: what was there when the kernel started. What is there when the function returns is
    /// written back if the argument is written to.
    Memory(HostBytes),
    /// A number.
    Scalar {
        /// The number.
        bytes: [u8; 8],
        /// How many of the bytes count.
        len: u8,
    },
}

/// Bytes that are aligned for any plain type.
#[derive(Clone, Debug, Default)]
pub struct HostBytes {
    words: Vec<u128>,
    len: usize,
}

impl HostBytes {
    /// So many zeros.
    pub fn zeroed(len: usize) -> HostBytes {
        HostBytes {
            words: vec![0; len.div_ceil(16)],
            len,
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// One node of a graph.
#[derive(Debug)]
pub struct Node {
    /// What it does and what it touches. Its stream and its number mean nothing.
    pub op: Op,
    /// What the machine needs for it.
    pub work: NodeWork,
    /// The nodes that it stands behind, all earlier ones.
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

/// When an operation ran on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Which.
    pub op: OpId,
    /// Its call on the host, start and end, where that is known.
    pub call_ns: Option<(u64, u64)>,
    /// Its work, start and end; absent if it was the host's alone.
    pub work_ns: Option<(u64, u64)>,
}
