//! One entry of a log: a declaration, call or time of a program, as plain data.
//!
//! The runtime, stream programs and the Python package produce records; the log writer, the checker and traces
//! consume them. All of them number streams, events, buffers, threads and call sites in the order of their
//! declarations, each from zero, so a declaration has no id.

use std::borrow::Cow;

use super::Within;
use crate::backend::Done;
use crate::op::{Accesses, DeviceId, Kind, Memory, Op, OpId, SiteId, StreamKind, ThreadId};

/// One entry of a log. Strings and operations may be borrowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Declares the next stream.
    Stream {
        /// How the stream is ordered with other streams of its device.
        kind: StreamKind,
        /// Its device.
        device: DeviceId,
        /// Its name, for reports; may be empty.
        name: Cow<'a, str>,
    },
    /// Declares the next event.
    Event {
        /// Whether the event records the device's time.
        timing: bool,
        /// The device on which it was created, if known.
        device: Option<DeviceId>,
        /// Its name, for reports; may be empty.
        name: Cow<'a, str>,
    },
    /// Declares the next buffer: one allocation, from its beginning to its free.
    Buffer {
        /// Its kind of memory.
        memory: Memory,
        /// Its size in bytes.
        bytes: u64,
        /// The earlier buffer whose bytes this buffer shares; `None` if it has its own bytes.
        within: Option<Within>,
        /// Its name, for reports; may be empty.
        name: Cow<'a, str>,
    },
    /// Declares the next host thread.
    Thread {
        /// Its name, for reports; may be empty.
        name: Cow<'a, str>,
    },
    /// Declares the next call site.
    Site {
        /// The text shown in reports, such as `train.py:12`; may be empty.
        text: Cow<'a, str>,
    },
    /// Notes that a stream was taken from a pool of streams.
    Pool {
        /// The operation that the call precedes.
        op: OpId,
        /// The number of streams taken so far.
        asked: u32,
        /// The number of streams in the pool.
        size: u32,
    },
    /// A call.
    Op(Cow<'a, Op>),
    /// Notes that a thread enters a span, or leaves its innermost one; its calls in between belong to the span.
    Span {
        /// The thread.
        thread: ThreadId,
        /// The name of the span that the thread enters; `None` if the thread leaves one.
        enters: Option<Cow<'a, str>>,
    },
    /// The times of an operation, known only after it ran. Of several records for one operation the last counts.
    Done(Done),
}

impl<'a> Record<'a> {
    /// Returns the declaration of a stream.
    pub fn stream(kind: StreamKind, device: DeviceId, name: impl Into<Cow<'a, str>>) -> Self {
        let name = name.into();
        Record::Stream { kind, device, name }
    }

    /// Returns the declaration of an event. `timing` is whether it records the device's time; `device` is the device on
    /// which it was created, if known.
    pub fn event(timing: bool, device: Option<DeviceId>, name: impl Into<Cow<'a, str>>) -> Self {
        let name = name.into();
        Record::Event {
            timing,
            device,
            name,
        }
    }

    /// Returns the declaration of a buffer, with its own bytes or those of an earlier buffer.
    pub fn buffer(
        memory: Memory,
        bytes: u64,
        within: Option<Within>,
        name: impl Into<Cow<'a, str>>,
    ) -> Self {
        Record::Buffer {
            memory,
            bytes,
            within,
            name: name.into(),
        }
    }

    /// Returns the declaration of a thread.
    pub fn thread(name: impl Into<Cow<'a, str>>) -> Self {
        Record::Thread { name: name.into() }
    }

    /// Returns the declaration of a call site.
    pub fn site(text: impl Into<Cow<'a, str>>) -> Self {
        Record::Site { text: text.into() }
    }

    /// Returns the record of a call.
    #[inline]
    pub fn op(op: &'a Op) -> Self {
        Record::Op(Cow::Borrowed(op))
    }

    /// Returns the record that a thread enters the span of this name, or leaves its innermost one.
    pub fn span(thread: ThreadId, enters: Option<&'a str>) -> Self {
        let enters = enters.map(Cow::Borrowed);
        Record::Span { thread, enters }
    }
}

/// An empty record, for [`Reader::read_into`](super::Reader::read_into).
impl Default for Record<'_> {
    fn default() -> Self {
        Record::Op(Cow::Owned(Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind: Kind::HostAccess,
            accesses: Accesses::new(),
        }))
    }
}

/// A receiver of the calls of a running program, in the order in which the driver received them.
///
/// Ids count up from zero and are declared before they are named. A sink may not call the runtime, since locks
/// are held while it is called. A sink that panics receives no further records; the call that it was processing completes
/// and panics at its end.
pub trait Sink: Send {
    /// Receives the next declaration, call, span, or time. The operation of a [`Record::Done`] may be unknown to a sink
    /// that was attached late.
    fn take(&mut self, record: &Record<'_>);

    /// Whether the sink uses [`Record::Done`], so that the back end must keep the times. Called once.
    fn wants_times(&self) -> bool {
        false
    }
    /// Returns, once, the message with which the thread of the last call has to panic. Called after each call.
    fn alarm(&mut self) -> Option<String> {
        None
    }
    /// Called when the numbers of operations are used up, so that no further call can be recorded.
    fn full(&mut self) {}
}
