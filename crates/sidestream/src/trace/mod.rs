//! Traces of runs: as a drawing for the terminal and as a file for Perfetto.
//!
//! A [`Trace`] is plain data. [`Trace::write_json`] writes it in the conventions of PyTorch's profiler (Kineto), so that
//! tools for those traces read ours: one lane per stream, a flow from each call to the work it submitted, and a row for
//! every wait.

mod chrome;
mod embedded;
mod json;
mod of_op;
mod recorded;
mod timeline;

use crate::op::{DeviceId, Memory, OpId, StreamId, ThreadId};

pub use chrome::{ChromeWriter, us};
pub use embedded::{EmbeddedError, embedded_log};
pub(crate) use of_op::Records;
pub use recorded::{Recorded, recorded};
pub use timeline::Timeline;

/// A run: calls of host threads and work of devices, with times in nanoseconds from its start.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The devices.
    pub devices: Vec<Device>,
    /// The streams.
    pub streams: Vec<Stream>,
    /// The host threads.
    pub threads: Vec<Thread>,
    /// The calls of host threads, in the order of their operations. A kernel operation with several launches has two consecutive
    /// calls: the first launch, and all others.
    pub calls: Vec<Call>,
    /// The work of devices. Several launches of one operation are two consecutive rows: the launches that may start after the first
    /// call, and the last launch, which cannot run before the second call has made it.
    pub work: Vec<Work>,
    /// The named spans in which calls were made, outer ones first.
    pub spans: Vec<Span>,
    /// The op log of the run ([`crate::log`]), which is then written into the trace, so that the run can be checked from it;
    /// [`embedded_log`] reads it.
    pub log: Option<Vec<u8>>,
}

/// A device of a trace.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its index.
    pub id: DeviceId,
    /// Its name, for display.
    pub name: String,
    /// The number of its multiprocessors; 0 if unknown.
    pub sms: u32,
    /// The size of its memory; 0 if unknown.
    pub memory_bytes: u64,
}

/// A named span of a program: one entry for the host thread that was in it, and one for each stream with work that was
/// called in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// The number of the span, equal for all its entries.
    pub number: u64,
    /// The thread or stream of this entry.
    pub place: Place,
    /// The start of the first call or work in it, ns.
    pub start_ns: u64,
    /// The end of the last call or work in it, ns.
    pub end_ns: u64,
}

/// The lane of a [`Span`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// A host thread.
    Thread(ThreadId),
    /// A stream of a device.
    Stream(DeviceId, StreamId),
}

/// A stream of a trace.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its id.
    pub id: StreamId,
    /// Its device.
    pub device: DeviceId,
    /// Its name, for display.
    pub name: String,
    /// Whether the stream is the legacy default stream of its device.
    pub is_legacy: bool,
}

/// A host thread of a trace.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// Its name, for display.
    pub name: String,
}

/// A call of a host thread.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub op: OpId,
    /// The calling thread.
    pub thread: ThreadId,
    /// The name of the CUDA runtime function.
    pub name: &'static str,
    /// The start of the call, ns.
    pub start_ns: u64,
    /// The return of the call, ns.
    pub end_ns: u64,
    /// Whether this is no CUDA call but work of the thread itself, which reads or writes memory.
    pub is_host_work: bool,
    /// The target of the wait, if the call waits.
    pub waits: Option<Waits>,
}

/// The target of a call that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// A stream.
    Stream(StreamId),
    /// The record of an event.
    Event {
        /// The operation that recorded the event, if any did.
        recorded_by: Option<OpId>,
    },
    /// A whole device.
    Device(DeviceId),
}

/// A piece of work on a device, or a wait in a stream.
#[derive(Clone, Debug)]
pub struct Work {
    /// The operation.
    pub op: OpId,
    /// Its device.
    pub device: DeviceId,
    /// Its stream.
    pub stream: StreamId,
    /// The kind of work.
    pub what: What,
    /// The name, equal for equal work: a kernel, or a call site.
    pub name: String,
    /// The label of this piece of work in a drawing.
    pub label: String,
    /// The start, ns.
    pub start_ns: u64,
    /// The end, ns.
    pub end_ns: u64,
}

/// The kind of a [`Work`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A kernel, or a graph.
    Kernel,
    /// A copy.
    Copy {
        /// Memory of the source.
        from: Memory,
        /// Memory of the destination.
        to: Memory,
        /// The number of bytes.
        bytes: u64,
    },
    /// A copy between two devices.
    CopyPeer {
        /// The number of bytes.
        bytes: u64,
    },
    /// A memset.
    Memset {
        /// The number of bytes.
        bytes: u64,
    },
    /// A host function, in stream order.
    HostFunc,
    /// A wait for an event, enqueued in the stream.
    Wait {
        /// The operation that recorded the event, if any did.
        recorded_by: Option<OpId>,
    },
}

/// The engine that does a kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Engine {
    /// Host to device.
    Upload,
    /// Kernels, memsets and copies within the device.
    Compute,
    /// Device to host.
    Download,
    /// Device to device, by an engine of the device to which the stream belongs.
    PeerCopy,
    /// The host.
    Host,
}

impl Engine {
    /// Returns its name, for display.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Upload => "upload",
            Engine::Compute => "compute",
            Engine::Download => "download",
            Engine::PeerCopy => "peer copy",
            Engine::Host => "host",
        }
    }
}

impl What {
    /// Returns the engine that does this work; a wait occupies none.
    pub fn engine(self) -> Option<Engine> {
        match self {
            What::Kernel | What::Memset { .. } => Some(Engine::Compute),
            What::Copy { from, to, .. } => Some(match (from.is_host(), to.is_host()) {
                (true, false) => Engine::Upload,
                (false, true) => Engine::Download,
                (false, false) => Engine::Compute,
                (true, true) => Engine::Host,
            }),
            What::CopyPeer { .. } => Some(Engine::PeerCopy),
            What::HostFunc => Some(Engine::Host),
            What::Wait { .. } => None,
        }
    }
}

impl Trace {
    /// Returns the end of the last call or work, ns.
    pub fn end_ns(&self) -> u64 {
        let calls = self.calls.iter().map(|c| c.end_ns);
        calls
            .chain(self.work.iter().map(|w| w.end_ns))
            .max()
            .unwrap_or(0)
    }
}
