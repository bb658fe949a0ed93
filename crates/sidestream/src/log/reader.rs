//! Reads a log, record by record, trusting nothing in it.

use std::io::Read;
use std::iter::FusedIterator;

use super::codec::{
    BUFFER, DONE, END, EVENT, OP, POOL, SITE, SPAN, STREAM, THREAD, buffer_at, memory, read_op,
};
use super::declared::Declared;
use super::error::{Error, Problem};
use super::input::Input;
use super::{MAGIC, Record, VERSION, Within};
use crate::backend::Done;
use crate::op::{BufferId, DeviceId, EventId, Op, OpId, SiteId, StreamId, StreamKind, ThreadId};

/// Reads the records of a log, one after the other.
///
/// Every record that it gives out meets the [conditions](super#conditions). It keeps eight bytes a
/// declared buffer and nothing else that grows. It buffers by itself.
///
/// # Errors
/// The first error ends the reading. Every error says at which byte it is, what was expected there
/// and what can be done. If [`Error::is_cut`] holds, all records before it are as they were
/// written.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    declared: Declared,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(input: R) -> Result<Reader<R>, Error> {
        let mut input = Input::new(input);
        for expected in MAGIC {
            if input.byte()? != expected {
                return Err(input.error(Problem::NotALog));
            }
        }
        let version = u16::from_le_bytes(input.bytes()?);
        if version != VERSION {
            return Err(input.error(Problem::Version(version)));
        }
        if input.bytes::<6>()? != [0; 6] {
            return Err(input.malformed("six bytes of zero after the version"));
        }
        Ok(Reader {
            input,
            declared: Declared::new(),
            is_over: false,
        })
    }

    /// Reads the next record in place of `record`, whose room is used again where it can be; false
    /// after the last one. Reading operations one after the other into the same record allocates
    /// nothing.
    pub fn read_into(&mut self, record: &mut Record) -> Result<bool, Error> {
        if self.is_over {
            return Ok(false);
        }
        let more = self.next_into(record);
        self.is_over = !matches!(more, Ok(true));
        more
    }

    /// The byte of the file at which the last record starts.
    pub fn offset(&self) -> u64 {
        self.input.record_start()
    }

    fn next_into(&mut self, record: &mut Record) -> Result<bool, Error> {
        self.input.start();
        let tag = self.input.byte()?;
        if tag & OP != 0 {
            self.input.is("an operation");
            if !matches!(record, Record::Op(_)) {
                *record = Record::default();
            }
            if let Record::Op(op) = record {
                self.op(tag, op)?;
            }
            return Ok(true);
        }
        if tag == END {
            self.end()?;
            return Ok(false);
        }
        *record = match tag {
            STREAM => self.stream()?,
            EVENT => self.event()?,
            BUFFER => self.buffer()?,
            THREAD => self.thread()?,
            SITE => self.site()?,
            POOL => self.pool()?,
            SPAN => self.span()?,
            DONE => self.done()?,
            _ => {
                return Err(self
                    .input
                    .malformed("a record, which starts with 0 to 8 or 128 to 255"));
            }
        };
        Ok(true)
    }

    #[inline]
    fn op(&mut self, tag: u8, op: &mut Op) -> Result<(), Error> {
        read_op(tag, op, &mut self.input, &self.declared)?;
        let checked = self.declared.check(op);
        checked.map_err(|problem| self.input.error(problem))?;
        self.declared.add_op(op);
        Ok(())
    }

    fn stream(&mut self) -> Result<Record, Error> {
        self.input.is("a stream");
        let kind = match self.input.bits(2, "a kind of stream, 0 to 3")? {
            0 => StreamKind::NonBlocking,
            1 => StreamKind::Blocking,
            2 => StreamKind::PerThread,
            _ => StreamKind::Legacy,
        };
        let device = DeviceId(self.input.small()?);
        let name = self.input.text()?;
        let id = StreamId(self.declared.streams);
        let added = self.declared.add_stream(kind, device);
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Stream {
            id,
            kind,
            device,
            name,
        })
    }

    fn event(&mut self) -> Result<Record, Error> {
        self.input.is("an event");
        let flags = self.input.bits(2, "the flags of an event, 0 to 3")?;
        let timing = flags & 1 != 0;
        let device = match flags & 2 {
            0 => None,
            _ => Some(DeviceId(self.input.small()?)),
        };
        let name = self.input.text()?;
        let id = EventId(self.declared.events);
        let added = self.declared.add_event(device);
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Event {
            id,
            timing,
            device,
            name,
        })
    }

    fn buffer(&mut self) -> Result<Record, Error> {
        self.input.is("a buffer");
        let flags = self.input.bits(3, "the flags of a buffer, 0 to 7")?;
        let memory = memory(flags);
        let bytes = self.input.number()?;
        let within = match flags & 4 {
            0 => None,
            _ => {
                let back = self.input.number()?;
                let buffer = buffer_at(back, &self.input, &self.declared)?;
                let start = self.input.number()?;
                Some(Within { buffer, start })
            }
        };
        let name = self.input.text()?;
        let id = BufferId(self.declared.newest());
        let added = self.declared.add_buffer(bytes, within);
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Buffer {
            id,
            memory,
            bytes,
            within,
            name,
        })
    }

    fn thread(&mut self) -> Result<Record, Error> {
        self.input.is("a thread");
        let name = self.input.text()?;
        let id = ThreadId(self.declared.threads);
        let added = self.declared.add_thread();
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Thread { id, name })
    }

    fn site(&mut self) -> Result<Record, Error> {
        self.input.is("a call site");
        let text = self.input.text()?;
        let id = SiteId(self.declared.sites);
        let added = self.declared.add_site();
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Site { id, text })
    }

    fn pool(&mut self) -> Result<Record, Error> {
        self.input.is("a pool note");
        let op = OpId(self.input.small()?);
        let (asked, size) = (self.input.small()?, self.input.small()?);
        self.declared.pools += 1;
        Ok(Record::Pool { op, asked, size })
    }

    fn span(&mut self) -> Result<Record, Error> {
        self.input.is("a span");
        let enters = self.input.bits(1, "1 to enter a span, 0 to leave one")? == 1;
        let thread = ThreadId(self.input.small()?);
        // Whether there may be one is known before its name is read.
        let added = self.declared.add_span(thread, enters);
        added.map_err(|problem| self.input.error(problem))?;
        let enters = enters.then(|| self.input.text()).transpose()?;
        Ok(Record::Span { thread, enters })
    }

    fn done(&mut self) -> Result<Record, Error> {
        self.input.is("the times of an operation");
        let flags = self.input.bits(2, "which times are known, 0 to 3")?;
        let back = self.input.number()?;
        let id = self.declared.next.checked_sub(back.saturating_add(1));
        let op = id.and_then(|id| u32::try_from(id).ok()).map(OpId);
        let op = op.ok_or_else(|| {
            let expected = "the distance from the newest operation back to an earlier one";
            self.input.malformed(expected)
        })?;
        let call_ns = (flags & 1 != 0).then(|| self.times()).transpose()?;
        let work_ns = (flags & 2 != 0).then(|| self.times()).transpose()?;
        let done = Done {
            op,
            call_ns,
            work_ns,
        };
        let added = self.declared.add_done(&done);
        added.map_err(|problem| self.input.error(problem))?;
        Ok(Record::Done(done))
    }

    /// A start and how long it lasts.
    fn times(&mut self) -> Result<(u64, u64), Error> {
        let start = self.input.number()?;
        Ok((start, start.saturating_add(self.input.number()?)))
    }

    fn end(&mut self) -> Result<(), Error> {
        self.input.is("the end record");
        for (what, holds) in self.declared.counts() {
            let said = self.input.number()?;
            if said != holds {
                return Err(self.input.error(Problem::Count { what, said, holds }));
            }
        }
        self.input.start();
        if !self.input.is_at_end()? {
            return Err(self.input.error(Problem::Trailing));
        }
        Ok(())
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = Record::default();
        match self.read_into(&mut record) {
            Ok(true) => Some(Ok(record)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<R: Read> FusedIterator for Reader<R> {}
