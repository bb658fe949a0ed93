//! The declarations of a log so far, and the check whether a record fits them. The writer and the reader share it,
//! so that every log that can be written can be read.

#![deny(clippy::wildcard_enum_match_arm)]

use super::error::Problem;
use super::{Record, Within, limits};
use crate::backend::Done;
use crate::op::{Access, BufferId, DeviceId, Kind, Named, Op, StreamKind, ThreadId};

/// The ids that records may name, and the counts of the end record.
#[derive(Debug)]
pub(super) struct Declared {
    pub streams: u32,
    pub events: u32,
    pub threads: u32,
    pub sites: u32,
    /// By buffer: its size in bytes.
    pub buffers: Vec<u64>,
    pub pools: u64,
    pub ops: u64,
    pub spans: u64,
    pub dones: u64,
    /// By thread: the number of spans it is in. Threads after the last one that entered a span are missing.
    depths: Vec<u32>,
    /// By device: whether its legacy stream is declared.
    legacy: [bool; limits::DEVICES as usize],
    /// The smallest number that the next operation may have.
    pub next: u64,
    /// The thread of the last call.
    pub thread: ThreadId,
}

type Checked = Result<(), Problem>;

impl Declared {
    pub(super) fn new() -> Declared {
        Declared {
            streams: 0,
            events: 0,
            threads: 0,
            sites: 0,
            buffers: Vec::new(),
            pools: 0,
            ops: 0,
            spans: 0,
            dones: 0,
            depths: Vec::new(),
            legacy: [false; limits::DEVICES as usize],
            next: 0,
            thread: ThreadId(0),
        }
    }

    /// Returns the counts of the end record, in its order.
    pub(super) fn counts(&self) -> [(&'static str, u64); 9] {
        [
            ("streams", u64::from(self.streams)),
            ("events", u64::from(self.events)),
            ("buffers", self.buffers.len() as u64),
            ("threads", u64::from(self.threads)),
            ("call sites", u64::from(self.sites)),
            ("pool notes", self.pools),
            ("operations", self.ops),
            ("spans entered or left", self.spans),
            ("times of operations", self.dones),
        ]
    }

    /// Adds a record other than an operation, if it is valid here.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Checked {
        match record {
            Record::Stream { kind, device, .. } => self.add_stream(*kind, *device),
            Record::Event { device, .. } => self.add_event(*device),
            Record::Buffer { bytes, within, .. } => self.add_buffer(*bytes, *within),
            Record::Thread { .. } => count(&mut self.threads, limits::THREADS, "threads"),
            Record::Site { .. } => count(&mut self.sites, limits::SITES, "call sites"),
            Record::Pool { .. } => {
                self.pools += 1;
                Ok(())
            }
            Record::Span { thread, enters } => self.add_span(*thread, enters.is_some()),
            Record::Done(done) => self.add_done(done),
            Record::Op(op) => {
                self.check(op)?;
                self.add_op(op);
                Ok(())
            }
        }
    }

    fn add_stream(&mut self, kind: StreamKind, device: DeviceId) -> Checked {
        below(self.streams, limits::STREAMS, "streams")?;
        self.device(device)?;
        if kind == StreamKind::Legacy {
            let legacy = &mut self.legacy[device.0 as usize];
            if *legacy {
                return Err(Problem::SecondLegacy(device));
            }
            *legacy = true;
        }
        self.streams += 1;
        Ok(())
    }

    fn add_event(&mut self, device: Option<DeviceId>) -> Checked {
        below(self.events, limits::EVENTS, "events")?;
        device.map_or(Ok(()), |device| self.device(device))?;
        self.events += 1;
        Ok(())
    }

    fn add_buffer(&mut self, bytes: u64, within: Option<Within>) -> Checked {
        below(self.newest(), limits::BUFFERS, "buffers")?;
        if bytes > limits::BUFFER_BYTES {
            let (what, limit) = ("bytes in a buffer", limits::BUFFER_BYTES);
            return Err(Problem::TooMuch { what, limit });
        }
        if let Some(Within { buffer, start }) = within {
            let end = start.saturating_add(bytes);
            self.range(buffer, start, end)?;
        }
        self.buffers.push(bytes);
        Ok(())
    }

    /// Records that a thread enters a span or leaves one.
    fn add_span(&mut self, thread: ThreadId, enters: bool) -> Checked {
        known("thread", thread.0, self.threads)?;
        let at = thread.0 as usize;
        if self.depths.len() <= at {
            self.depths.resize(at + 1, 0);
        }
        let depth = &mut self.depths[at];
        if enters {
            below(*depth, limits::SPAN_DEPTH, "spans of a thread at once")?;
            *depth += 1;
        } else {
            *depth = depth.checked_sub(1).ok_or(Problem::NoSpan(thread))?;
        }
        self.spans += 1;
        Ok(())
    }

    /// Adds the times of an earlier operation.
    fn add_done(&mut self, done: &Done) -> Checked {
        let (id, next) = (done.op.0, self.next);
        if u64::from(id) >= next {
            return Err(Problem::EarlyTimes { id, next });
        }
        for (start, end) in [done.call_ns, done.work_ns].into_iter().flatten() {
            if start > end {
                return Err(Problem::Backwards { id, start, end });
            }
            if end > limits::TIME_NS {
                let (what, limit) = ("nanoseconds", limits::TIME_NS);
                return Err(Problem::TooMuch { what, limit });
            }
        }
        self.dones += 1;
        Ok(())
    }

    /// Returns the number of buffers; a buffer id is written as the distance from it.
    #[inline]
    pub(super) fn newest(&self) -> u32 {
        self.buffers.len() as u32
    }

    /// Checks that an operation is valid here.
    #[inline]
    pub(super) fn check(&self, op: &Op) -> Checked {
        let (id, least) = (op.id.0, self.next);
        if u64::from(id) < least {
            return Err(Problem::Number { id, least });
        }
        known("thread", op.thread.0, self.threads)?;
        known("call site", op.site.0, self.sites)?;
        self.kind(&op.kind)?;
        if op.accesses.len() > limits::ACCESSES as usize {
            return Err(too_many_accesses());
        }
        for &Access {
            buffer, start, end, ..
        } in &op.accesses
        {
            self.range(buffer, start, end)?;
        }
        Ok(())
    }

    /// Adds an operation that was checked.
    #[inline]
    pub(super) fn add_op(&mut self, op: &Op) {
        self.next = u64::from(op.id.0) + 1;
        self.thread = op.thread;
        self.ops += 1;
    }

    #[inline]
    fn kind(&self, kind: &Kind) -> Checked {
        if let Kind::Kernel { launches: 0, .. } = kind {
            return Err(Problem::NoLaunch);
        }
        let mut kind = *kind;
        kind.each_named(|named| match named {
            Named::Stream(id) => known("stream", id.0, self.streams),
            Named::Event(id) => known("event", id.0, self.events),
            Named::Buffer(id) => self.buffer(*id),
            Named::Flag(id) => below(id.0, limits::FLAGS, "flags"),
            Named::Graph(id) => below(id.0, limits::GRAPHS, "graphs"),
            Named::Device(id) => self.device(*id),
        })
    }

    #[inline]
    fn buffer(&self, id: BufferId) -> Checked {
        known("buffer", id.0, self.newest())
    }

    fn device(&self, id: DeviceId) -> Checked {
        below(id.0, limits::DEVICES, "devices")
    }

    #[inline]
    fn range(&self, buffer: BufferId, start: u64, end: u64) -> Checked {
        self.buffer(buffer)?;
        let bytes = self.buffers[buffer.0 as usize];
        if start > end || end > bytes {
            return Err(Problem::Outside {
                buffer,
                start,
                end,
                bytes,
            });
        }
        Ok(())
    }
}

/// Returns the error for too many accesses. The number is checked before memory is allocated for them.
pub(super) fn too_many_accesses() -> Problem {
    Problem::TooMuch {
        what: "accesses in an operation",
        limit: u64::from(limits::ACCESSES),
    }
}

#[inline]
fn known(what: &'static str, id: u32, declared: u32) -> Checked {
    if id < declared {
        return Ok(());
    }
    let (id, declared) = (u64::from(id), u64::from(declared));
    Err(Problem::Undeclared { what, id, declared })
}

/// Increments a count, within its limit.
fn count(so_far: &mut u32, limit: u32, what: &'static str) -> Checked {
    below(*so_far, limit, what)?;
    *so_far += 1;
    Ok(())
}

/// Checks that an id, or a count to be incremented, is below its limit.
fn below(count: u32, limit: u32, what: &'static str) -> Checked {
    if count < limit {
        return Ok(());
    }
    let limit = u64::from(limit);
    Err(Problem::TooMuch { what, limit })
}
