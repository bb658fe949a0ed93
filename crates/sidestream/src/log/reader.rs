//! Reads a log, record by record, and validates all of it.

use std::io::Read;
use std::iter::FusedIterator;

use super::codec::{END, OP, fields, of_tag, read_op};
use super::declared::Declared;
use super::error::{Error, Problem};
use super::input::Input;
use super::{MAGIC, Record, VERSION};
use crate::op::Op;

/// Reads the records of a log, one after the other.
///
/// Every record that it returns meets the [conditions](super#conditions). Its memory grows by eight bytes for each
/// declared buffer, and with nothing else. The input need not be buffered.
///
/// # Errors
/// The first error ends the log. Every error names its byte, what was expected there and the remedy. If
/// [`Error::is_cut`] returns true, all records before it are as they were written.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    declared: Declared,
    has_ended: bool,
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
            has_ended: false,
        })
    }

    /// Reads the next record into `record`, whose memory is reused where possible; returns false after the last
    /// one. Reading consecutive operations into the same record does not allocate.
    pub fn read_into(&mut self, record: &mut Record<'static>) -> Result<bool, Error> {
        if self.has_ended {
            return Ok(false);
        }
        let more = self.next_into(record);
        self.has_ended = !matches!(more, Ok(true));
        more
    }

    /// Returns the file offset of the last record.
    pub fn offset(&self) -> u64 {
        self.input.record_start()
    }

    fn next_into(&mut self, record: &mut Record<'static>) -> Result<bool, Error> {
        self.input.start();
        let tag = self.input.byte()?;
        if tag & OP != 0 {
            self.input.is("an operation");
            if !matches!(record, Record::Op(_)) {
                *record = Record::default();
            }
            if let Record::Op(op) = record {
                self.op(tag, op.to_mut())?;
            }
            return Ok(true);
        }
        if tag == END {
            self.end()?;
            return Ok(false);
        }
        let Some((what, blank)) = of_tag(tag) else {
            let expected = "a record, which starts with 0 to 8 or 128 to 255";
            return Err(self.input.malformed(expected));
        };
        self.input.is(what);
        *record = fields(&mut self.input, blank, &self.declared)?;
        let added = self.declared.add(record);
        added.map_err(|problem| self.input.error(problem))?;
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
    type Item = Result<Record<'static>, Error>;

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
