//! Writes a log while the calls are made.

use std::io::{self, BufWriter, Write};

use super::codec::{
    BUFFER, DONE, END, EVENT, POOL, SITE, SPAN, STREAM, THREAD, memory_code, put, put_op,
};
use super::declared::Declared;
use super::error::{Error, Problem};
use super::{MAGIC, VERSION, Within, limits};
use crate::backend::Done;
use crate::op::{
    BufferId, DeviceId, EventId, Memory, Op, OpId, SiteId, StreamId, StreamKind, ThreadId,
};

/// Writes declarations and operations, in the order in which they are given.
///
/// Everything has to be declared before the first record that names it; the ids count up from zero
/// and are returned. [`Writer::finish`] writes the end record, by which a reader sees that nothing
/// is missing; a log without it is readable and counts as cut off. The writer buffers.
///
/// # Errors
/// Every method gives what the file answers, or says which of the [conditions](super#conditions)
/// the record does not meet. A record that does not meet them is not written, and the log is as
/// good as before.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: BufWriter<W>,
    declared: Declared,
    /// The present record; reused.
    record: Vec<u8>,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a log.
    pub fn new(out: W) -> Result<Writer<W>, Error> {
        let mut writer = Writer {
            out: BufWriter::with_capacity(64 * 1024, out),
            declared: Declared::new(),
            record: Vec::with_capacity(256),
            written: 0,
        };
        writer.record.extend_from_slice(&MAGIC);
        writer.record.extend_from_slice(&VERSION.to_le_bytes());
        writer.record.extend_from_slice(&[0; 6]);
        writer.write_record()?;
        Ok(writer)
    }

    /// Declares a stream.
    pub fn stream(
        &mut self,
        kind: StreamKind,
        device: DeviceId,
        name: &str,
    ) -> Result<StreamId, Error> {
        let id = StreamId(self.declared.streams);
        let added = self.declared.add_stream(kind, device);
        added.map_err(|problem| self.error(problem))?;
        let kind = match kind {
            StreamKind::NonBlocking => 0,
            StreamKind::Blocking => 1,
            StreamKind::PerThread => 2,
            StreamKind::Legacy => 3,
        };
        self.record.extend_from_slice(&[STREAM, kind]);
        put(&mut self.record, u64::from(device.0));
        self.put_text(name);
        self.write_record()?;
        Ok(id)
    }

    /// Declares an event: whether it keeps times, and the device it was created on, if known.
    pub fn event(
        &mut self,
        timing: bool,
        device: Option<DeviceId>,
        name: &str,
    ) -> Result<EventId, Error> {
        let id = EventId(self.declared.events);
        let added = self.declared.add_event(device);
        added.map_err(|problem| self.error(problem))?;
        let flags = u8::from(timing) | u8::from(device.is_some()) << 1;
        self.record.extend_from_slice(&[EVENT, flags]);
        if let Some(device) = device {
            put(&mut self.record, u64::from(device.0));
        }
        self.put_text(name);
        self.write_record()?;
        Ok(id)
    }

    /// Declares a buffer: one tenancy of some memory, with bytes of its own or those of an earlier
    /// buffer.
    pub fn buffer(
        &mut self,
        memory: Memory,
        bytes: u64,
        within: Option<Within>,
        name: &str,
    ) -> Result<BufferId, Error> {
        let id = BufferId(self.declared.newest());
        let added = self.declared.add_buffer(bytes, within);
        added.map_err(|problem| self.error(problem))?;
        let flags = memory_code(memory) | u8::from(within.is_some()) << 2;
        self.record.extend_from_slice(&[BUFFER, flags]);
        put(&mut self.record, bytes);
        if let Some(Within { buffer, start }) = within {
            put(&mut self.record, u64::from(id.0 - 1 - buffer.0));
            put(&mut self.record, start);
        }
        self.put_text(name);
        self.write_record()?;
        Ok(id)
    }

    /// Declares a host thread.
    pub fn thread(&mut self, name: &str) -> Result<ThreadId, Error> {
        let id = ThreadId(self.declared.threads);
        let added = self.declared.add_thread();
        added.map_err(|problem| self.error(problem))?;
        self.record.push(THREAD);
        self.put_text(name);
        self.write_record()?;
        Ok(id)
    }

    /// Declares a call site, such as `train.py:12`.
    pub fn site(&mut self, text: &str) -> Result<SiteId, Error> {
        let id = SiteId(self.declared.sites);
        let added = self.declared.add_site();
        added.map_err(|problem| self.error(problem))?;
        self.record.push(SITE);
        self.put_text(text);
        self.write_record()?;
        Ok(id)
    }

    /// Notes that a pool of `size` streams was asked for its stream number `asked`, at this place
    /// in the program.
    pub fn pool(&mut self, op: OpId, asked: u32, size: u32) -> Result<(), Error> {
        self.declared.pools += 1;
        self.record.push(POOL);
        for number in [op.0, asked, size] {
            put(&mut self.record, u64::from(number));
        }
        self.write_record()
    }

    /// Takes the next call.
    #[inline]
    pub fn op(&mut self, op: &Op) -> Result<(), Error> {
        if let Err(problem) = self.declared.check(op) {
            return Err(self.error(problem));
        }
        put_op(&mut self.record, op, &self.declared);
        self.declared.add_op(op);
        self.write_record()
    }

    /// A thread enters the span of this name, or leaves its innermost one.
    pub fn span(&mut self, thread: ThreadId, enters: Option<&str>) -> Result<(), Error> {
        let added = self.declared.add_span(thread, enters.is_some());
        added.map_err(|problem| self.error(problem))?;
        self.record
            .extend_from_slice(&[SPAN, u8::from(enters.is_some())]);
        put(&mut self.record, u64::from(thread.0));
        if let Some(name) = enters {
            self.put_text(name);
        }
        self.write_record()
    }

    /// Says when an operation ran that was called before. Of several times of one operation the
    /// last count.
    pub fn done(&mut self, done: &Done) -> Result<(), Error> {
        let added = self.declared.add_done(done);
        added.map_err(|problem| self.error(problem))?;
        let flags = u8::from(done.call_ns.is_some()) | u8::from(done.work_ns.is_some()) << 1;
        self.record.extend_from_slice(&[DONE, flags]);
        put(
            &mut self.record,
            self.declared.next - 1 - u64::from(done.op.0),
        );
        for (start, end) in [done.call_ns, done.work_ns].into_iter().flatten() {
            put(&mut self.record, start);
            put(&mut self.record, end - start);
        }
        self.write_record()
    }

    /// How long the log is so far.
    pub fn size_bytes(&self) -> u64 {
        self.written
    }

    /// Hands everything written so far to the file, so that it survives the end of this process.
    pub fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.error(Problem::Io(error)))
    }

    /// Ends the log and gives the file back.
    pub fn finish(mut self) -> Result<W, Error> {
        self.record.push(END);
        for (_, count) in self.declared.counts() {
            put(&mut self.record, count);
        }
        self.write_record()?;
        self.flush()?;
        let offset = self.written;
        self.out.into_inner().map_err(|error| Error {
            offset,
            problem: Problem::Io(io::Error::from(error)),
        })
    }

    fn put_text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(limits::TEXT_BYTES)];
        put(&mut self.record, text.len() as u64);
        self.record.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn write_record(&mut self) -> Result<(), Error> {
        let result = self.out.write_all(&self.record);
        self.written += self.record.len() as u64;
        self.record.clear();
        result.map_err(|error| self.error(Problem::Io(error)))
    }

    #[cold]
    pub(super) fn error(&self, problem: Problem) -> Error {
        let offset = self.written;
        Error { offset, problem }
    }
}
