//! The op log: every call of a run, in call order, in a file.
//!
//! A [`Writer`] takes declarations (streams, events, buffers, threads, call sites) and operations
//! as they happen; a [`Reader`] gives the same ones back. A file holds everything that a checker
//! needs and nothing that it can work out. `docs/op-log.md` describes every byte, for readers in
//! other languages.
//!
//! A log that was cut off is readable up to its last whole record; the reader then ends with an
//! [`Error`] for which [`Error::is_cut`] holds. Logs come from other machines and other programs:
//! the reader trusts nothing in them. What it gives out is safe to hand to the rule book and to
//! the checker, which panic on ids they do not know: the [list of conditions](self#conditions) is
//! below, and the writer holds its caller to the same ones.
//!
//! ```
//! use sidestream::log::{Reader, Record, Writer};
//! use sidestream::op::*;
//!
//! let mut log = Writer::new(Vec::new())?;
//! let stream = log.stream(StreamKind::NonBlocking, DeviceId(0), "upload")?;
//! let thread = log.thread("main")?;
//! let site = log.site("train.py:12")?;
//! let kind = Kind::SyncStream { stream };
//! let op = Op { id: OpId(0), thread, site, kind, accesses: Accesses::new() };
//! log.op(&op)?;
//! let bytes = log.finish()?;
//!
//! let records: Result<Vec<Record>, _> = Reader::new(&bytes[..])?.collect();
//! assert_eq!(records?.last(), Some(&Record::Op(op)));
//! # Ok::<(), sidestream::log::Error>(())
//! ```
//!
//! # Conditions
//! - Ids of streams, events, buffers, threads and sites count up from zero, in the order of their
//!   declarations. Every id is declared before the first record that names it.
//! - A device has at most one legacy stream among the declared ones.
//! - A buffer within another lies wholly inside it, and was declared after it.
//! - An access lies inside its buffer and does not end before it starts.
//! - Operations are numbered upwards; numbers may be left out.
//! - A kernel is launched at least once.
//! - A thread leaves only a span that it has entered; [`limits`] says how deep they go. A log may end
//!   inside of spans.
//! - Times are those of an operation that came before, and do not go backwards.
//! - Devices, flags and graphs are not declared: their ids stay below the bounds in [`limits`].

mod codec;
mod declared;
mod error;
mod input;
mod live;
mod reader;
mod recorder;
mod writer;

use crate::backend::Done;
use crate::op::{
    Accesses, BufferId, DeviceId, EventId, Kind, Memory, Op, OpId, SiteId, StreamId, StreamKind,
    ThreadId,
};

pub use error::{Error, Problem};
pub use live::{Live, Pen, Sink, SinkId};
pub use reader::Reader;
pub use recorder::Recorder;
pub use writer::Writer;

/// The first bytes of every log.
pub const MAGIC: [u8; 8] = *b"SIDESTRM";
/// The version that this library writes, and the only one that it reads.
pub const VERSION: u16 = 2;

/// How much a log may hold, so that a damaged or hostile one cannot make its reader ask for all
/// memory. Tables that grow by an id, and clocks that grow by streams times threads, are why.
#[expect(missing_docs, reason = "each is what it says")]
pub mod limits {
    pub const STREAMS: u32 = 4_096;
    pub const THREADS: u32 = 4_096;
    pub const EVENTS: u32 = 1 << 24;
    pub const BUFFERS: u32 = 1 << 26;
    pub const SITES: u32 = 1 << 24;
    pub const DEVICES: u32 = 256;
    pub const FLAGS: u32 = 1 << 16;
    pub const GRAPHS: u32 = 1 << 16;
    /// Of one operation.
    pub const ACCESSES: u32 = 1 << 14;
    /// Of one buffer.
    pub const BUFFER_BYTES: u64 = 1 << 62;
    /// Spans that a thread may be in at once.
    pub const SPAN_DEPTH: u32 = 256;
    /// Of one time line, in nanoseconds.
    pub const TIME_NS: u64 = 1 << 62;
    /// Of one name or call site, in bytes of UTF-8. The writer cuts longer ones.
    pub const TEXT_BYTES: usize = 4_096;
}

/// One entry of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A stream is made known.
    Stream {
        /// Its id: the number of streams before it.
        id: StreamId,
        /// How it takes part in the order of its device.
        kind: StreamKind,
        /// Its device.
        device: DeviceId,
        /// Its name, for people; may be empty.
        name: String,
    },
    /// An event is made known.
    Event {
        /// Its id: the number of events before it.
        id: EventId,
        /// Whether it keeps times.
        timing: bool,
        /// The device it was created on, where that is known.
        device: Option<DeviceId>,
        /// Its name, for people; may be empty.
        name: String,
    },
    /// A buffer is made known.
    Buffer {
        /// Its id: the number of buffers before it.
        id: BufferId,
        /// What kind of memory it is.
        memory: Memory,
        /// Its size.
        bytes: u64,
        /// Whose bytes it shares; its own if absent.
        within: Option<Within>,
        /// Its name, for people; may be empty.
        name: String,
    },
    /// A host thread is made known.
    Thread {
        /// Its id: the number of threads before it.
        id: ThreadId,
        /// Its name, for people; may be empty.
        name: String,
    },
    /// A call site is made known.
    Site {
        /// Its id: the number of sites before it.
        id: SiteId,
        /// For people, such as `train.py:12`; may be empty.
        text: String,
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
    Op(Op),
    /// A thread enters a span, or leaves its innermost one: what it calls in between belongs to it.
    Span {
        /// The thread.
        thread: ThreadId,
        /// The name of the span that it enters; none if it leaves one.
        enters: Option<String>,
    },
    /// When an operation ran, which is known only afterwards.
    Done(Done),
}

/// Something to read records into.
impl Default for Record {
    fn default() -> Record {
        Record::Op(Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind: Kind::HostAccess,
            accesses: Accesses::new(),
        })
    }
}

/// A place inside an earlier buffer, which may itself lie within another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Within {
    /// The earlier buffer.
    pub buffer: BufferId,
    /// The byte of it at which the later one starts.
    pub start: u64,
}
