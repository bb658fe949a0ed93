//! What ran when: a record of a run, as a picture for the terminal and as a file for Perfetto.
//!
//! A [`Trace`] is plain data. [`Trace::write_json`] writes it in the conventions of PyTorch's
//! profiler (Kineto), so that whatever reads those traces reads ours: one lane a stream, a flow
//! from each call to the work it submitted, and a row for every wait.

mod chrome;
mod embedded;
mod json;
mod of_op;
mod recorded;
mod timeline;

use crate::op::{DeviceId, Memory, OpId, StreamId, ThreadId};

pub use chrome::{ChromeWriter, us};
pub use embedded::{EmbeddedError, embedded_log};
pub use recorded::{Recorded, recorded};
pub use timeline::Timeline;

/// A run: calls of host threads and work of devices, with times in nanoseconds from its start.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The devices.
    pub devices: Vec<Device>,
    /// The streams that may appear.
    pub streams: Vec<Stream>,
    /// The host threads that may appear.
    pub threads: Vec<Thread>,
    /// What host threads called, in the order of their operations. A kernel that stands for several launches has two calls in a row: the
    /// first launch, and all others.
    pub calls: Vec<Call>,
    /// What devices did. Of several launches it is two rows in a row: what the first call let begin, and the last launch, which no device can
    /// run before the second call has made it.
    pub work: Vec<Work>,
    /// The named spans that something was called in, outer ones first.
    pub spans: Vec<Span>,
    /// The op log of the run ([`crate::log`]), which the written trace then carries, so that the
    /// run can be checked from it; [`embedded_log`] finds it again.
    pub log: Option<Vec<u8>>,
}

/// A device of a trace.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its index.
    pub id: DeviceId,
    /// Its name, for people.
    pub name: String,
    /// How many multiprocessors it has; 0 if that is not known.
    pub sms: u32,
    /// Its memory; 0 if that is not known.
    pub memory_bytes: u64,
}

/// A named span of a program: once on the host thread that was in it, and once on each stream that
/// did work which was called in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// The same for all that are one span.
    pub number: u64,
    /// Where.
    pub place: Place,
    /// When the first call or work in it began.
    pub start_ns: u64,
    /// When the last ended.
    pub end_ns: u64,
}

/// Where a [`Span`] lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// On the host.
    Thread(ThreadId),
    /// On a device.
    Stream(DeviceId, StreamId),
}

/// A stream of a trace.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its id.
    pub id: StreamId,
    /// Its device.
    pub device: DeviceId,
    /// Its name, for people.
    pub name: String,
    /// Whether it is the legacy default stream of its device.
    pub is_legacy: bool,
}

/// A host thread of a trace.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// Its name, for people.
    pub name: String,
}

/// A call of a host thread.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub op: OpId,
    /// Who called.
    pub thread: ThreadId,
    /// The function's name, as CUDA's runtime calls it.
    pub name: &'static str,
    /// When it was called.
    pub start_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// Whether the thread itself reads or writes memory in it, and calls nobody.
    pub is_host_work: bool,
    /// What it waited for, if it is a call that waits.
    pub waits: Option<Waits>,
}

/// What a waiting call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// A stream.
    Stream(StreamId),
    /// The record of an event, made by this operation.
    Event {
        /// The operation that recorded the event, if any did.
        recorded_by: Option<OpId>,
    },
    /// A whole device.
    Device(DeviceId),
}

/// Something a device did, or, for a wait, did not do.
#[derive(Clone, Debug)]
pub struct Work {
    /// The operation.
    pub op: OpId,
    /// Its device.
    pub device: DeviceId,
    /// Its stream.
    pub stream: StreamId,
    /// What it was.
    pub what: What,
    /// What it is called, the same for all that are alike: a kernel, a call site.
    pub name: String,
    /// What this one is called in a picture.
    pub label: String,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// What kind of work.
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
        /// How much.
        bytes: u64,
    },
    /// A copy between two devices.
    CopyPeer {
        /// How much.
        bytes: u64,
    },
    /// A memset.
    Memset {
        /// How much.
        bytes: u64,
    },
    /// A function on the host, in stream order.
    HostFunc,
    /// A wait for an event recorded by this operation, placed in the stream.
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
    /// Device to device, by an engine of the device whose stream it is in.
    PeerCopy,
    /// The host.
    Host,
}

impl Engine {
    /// Its name, for people.
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
    /// Which engine does it; a wait occupies none.
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
    /// When the last call or work ended.
    pub fn end_ns(&self) -> u64 {
        let calls = self.calls.iter().map(|c| c.end_ns);
        calls
            .chain(self.work.iter().map(|w| w.end_ns))
            .max()
            .unwrap_or(0)
    }
}
