//! The op log: every call of a run, in call order, in a file.
//!
//! A [`Writer`] takes [`Record`]s, which are declarations (streams, events, buffers, threads, call sites) and
//! operations, as they happen; a [`Reader`] returns them again. A file contains everything that a checker needs
//! and nothing that it can derive. `docs/reference/op-log.md` describes every byte, for readers in other languages.
//!
//! A log that was cut off is readable up to its last complete record; the reader then ends with an [`Error`] for which
//! [`Error::is_cut`] returns true. Logs come from other machines and other programs, so the reader validates all
//! of them. Its records are safe to pass to the rule book and to the checker, which panic on unknown ids: they
//! meet the [conditions](self#conditions) below, which the writer also requires of its caller.
//!
//! ```
//! use sidestream::log::{Reader, Record, Writer};
//! use sidestream::op::*;
//!
//! let mut log = Writer::new(Vec::new())?;
//! log.take(&Record::stream(StreamKind::NonBlocking, DeviceId(0), "upload"))?;
//! log.take(&Record::thread("main"))?;
//! log.take(&Record::site("train.py:12"))?;
//! let kind = Kind::SyncStream { stream: StreamId(0) };
//! let (id, thread, site) = (OpId(0), ThreadId(0), SiteId(0));
//! let op = Op { id, thread, site, kind, accesses: Accesses::new() };
//! log.take(&Record::op(&op))?;
//! let bytes = log.finish()?;
//!
//! let records: Result<Vec<Record>, _> = Reader::new(&bytes[..])?.collect();
//! assert_eq!(records?.last(), Some(&Record::op(&op)));
//! # Ok::<(), sidestream::log::Error>(())
//! ```
//!
//! # Conditions
//! - Ids of streams, events, buffers, threads and sites count up from zero, in the order of their
//!   declarations. Every id is declared before the first record that names it.
//! - A device has at most one legacy stream among the declared ones.
//! - A buffer within another one is completely inside it, and was declared after it.
//! - An access is inside its buffer and does not end before it starts.
//! - The numbers of operations increase; numbers may be skipped.
//! - A kernel is launched at least once.
//! - A thread leaves only a span that it has entered; [`limits`] has the greatest depth. A log may end
//!   inside spans.
//! - Times belong to an earlier operation, and do not end before they start.
//! - Devices, flags and graphs are not declared: their ids stay below the bounds in [`limits`].

mod codec;
mod declared;
mod error;
mod input;
mod live;
mod reader;
mod record;
mod recorder;
mod writer;

use crate::op::BufferId;

pub use error::{Error, Problem};
pub use live::{Live, Pen, SinkId};
pub use reader::Reader;
pub use record::{Record, Sink};
pub use recorder::Recorder;
pub use writer::Writer;

/// The first bytes of every log.
pub const MAGIC: [u8; 8] = *b"SIDESTRM";
/// The version that this library writes, and the only one that it reads.
pub const VERSION: u16 = 3;

/// The largest sizes and counts in a log, so that a damaged or hostile one cannot make its reader allocate all
/// memory: tables grow with ids, and clocks with streams times threads.
#[expect(missing_docs, reason = "each limit is named after what it counts")]
pub mod limits {
    pub const STREAMS: u32 = 4_096;
    pub const THREADS: u32 = 4_096;
    pub const EVENTS: u32 = 1 << 24;
    pub const BUFFERS: u32 = 1 << 26;
    pub const SITES: u32 = 1 << 24;
    pub const DEVICES: u32 = 256;
    pub const FLAGS: u32 = 1 << 16;
    pub const GRAPHS: u32 = 1 << 16;
    /// Accesses of one operation.
    pub const ACCESSES: u32 = 1 << 14;
    /// Size of one buffer, in bytes.
    pub const BUFFER_BYTES: u64 = 1 << 62;
    /// Nested spans of one thread.
    pub const SPAN_DEPTH: u32 = 256;
    /// Largest time, in nanoseconds.
    pub const TIME_NS: u64 = 1 << 62;
    /// Length of one name or call site, in bytes of UTF-8. The writer truncates longer ones.
    pub const TEXT_BYTES: usize = 4_096;
}

/// A place inside an earlier buffer, which may itself be within another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Within {
    /// The earlier buffer.
    pub buffer: BufferId,
    /// The offset in the earlier buffer at which the later one starts, in bytes.
    pub start: u64,
}
