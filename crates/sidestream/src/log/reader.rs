//! Reads a log, record by record, trusting nothing in it.

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
    pub fn read_into(&mut self, record: &mut Record<'static>) -> Result<bool, Error> {
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
