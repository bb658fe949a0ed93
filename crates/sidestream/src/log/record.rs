//! One entry of a log: what happened in a program, as plain data.
//!
//! The runtime, stream programs and the Python package give these; the writer of a log, the checker and
//! traces take them. All of them number streams, events, buffers, threads and call sites in the order of their
//! declarations, each from zero, so a declaration carries no id.

use std::borrow::Cow;

use super::Within;
use crate::backend::Done;
use crate::op::{Accesses, DeviceId, Kind, Memory, Op, OpId, SiteId, StreamKind, ThreadId};

/// One entry of a log. Texts and operations may be borrowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// The next stream is made known.
    Stream {
        /// How it takes part in the order of its device.
        kind: StreamKind,
        /// Its device.
        device: DeviceId,
        /// Its name, for people; may be empty.
        name: Cow<'a, str>,
    },
    /// The next event is made known.
    Event {
        /// Whether it keeps times.
        timing: bool,
        /// The device it was created on, where that is known.
        device: Option<DeviceId>,
        /// Its name, for people; may be empty.
        name: Cow<'a, str>,
    },
    /// The next buffer is made known: one tenancy of some memory.
    Buffer {
        /// What kind of memory it is.
        memory: Memory,
        /// Its size.
        bytes: u64,
        /// Whose bytes it shares; its own if absent.
        within: Option<Within>,
        /// Its name, for people; may be empty.
        name: Cow<'a, str>,
    },
    /// The next host thread is made known.
    Thread {
        /// Its name, for people; may be empty.
        name: Cow<'a, str>,
    },
    /// The next call site is made known.
    Site {
        /// For people, such as `train.py:12`; may be empty.
        text: Cow<'a, str>,
    },
    /// A pool of streams was asked for a stream.
    Pool {
        /// The place in the program.
        op: OpId,
        /// How many streams were asked for so far.
        asked: u32,
        /// How many the pool holds.
        size: u32,
    },
    /// A call.
    Op(Cow<'a, Op>),
    /// A thread enters a span, or leaves its innermost one: what it calls in between belongs to it.
    Span {
        /// The thread.
        thread: ThreadId,
        /// The name of the span that it enters; none if it leaves one.
        enters: Option<Cow<'a, str>>,
    },
    /// When an operation ran, which is known only afterwards. Of several times of one operation the last
    /// count.
    Done(Done),
}

impl<'a> Record<'a> {
    /// The next stream.
    pub fn stream(kind: StreamKind, device: DeviceId, name: impl Into<Cow<'a, str>>) -> Self {
        let name = name.into();
        Record::Stream { kind, device, name }
    }

    /// The next event: whether it keeps times, and the device it was created on, if known.
    pub fn event(timing: bool, device: Option<DeviceId>, name: impl Into<Cow<'a, str>>) -> Self {
        let name = name.into();
        Record::Event {
            timing,
            device,
            name,
        }
    }

    /// The next buffer, with bytes of its own or those of an earlier buffer.
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

    /// The next thread.
    pub fn thread(name: impl Into<Cow<'a, str>>) -> Self {
        Record::Thread { name: name.into() }
    }

    /// The next call site.
    pub fn site(text: impl Into<Cow<'a, str>>) -> Self {
        Record::Site { text: text.into() }
    }

    /// A call.
    #[inline]
    pub fn op(op: &'a Op) -> Self {
        Record::Op(Cow::Borrowed(op))
    }

    /// A thread enters the span of this name, or leaves its innermost one.
    pub fn span(thread: ThreadId, enters: Option<&'a str>) -> Self {
        let enters = enters.map(Cow::Borrowed);
        Record::Span { thread, enters }
    }
}

/// Something to read records into.
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

/// Somebody who is told every call of a running program, in the sequence in which the driver got
/// them.
///
/// Ids count up from zero and are declared before they are named. A sink may not call the runtime:
/// locks are held while it is told. One that panics is told nothing more; the call that it was told of does all that
/// it does, and panics at its end.
pub trait Sink: Send {
    /// The next declaration, call, span, or time. The operation of a [`Record::Done`] may be one that the sink was
    /// not told of, because it came late.
    fn take(&mut self, record: &Record<'_>);

    /// Whether it has a use for [`Record::Done`]: then the back end has to keep the times. It is asked once.
    fn wants_times(&self) -> bool {
        false
    }
    /// What the thread of the last call has to hear; asked after each call, and given once.
    fn alarm(&mut self) -> Option<String> {
        None
    }
    /// The numbers of operations are used up: no further call can be told.
    fn full(&mut self) {}
}
