//! Writes a log, record by record.

use std::io::{self, BufWriter, Write};

use super::codec::{END, fields, put, put_op, tag_of};
use super::declared::Declared;
use super::error::{Error, Problem};
use super::{MAGIC, Record, VERSION};

/// Writes declarations and operations, in the order in which they are given.
///
/// Everything must be declared before the first record that names it; ids count up from zero. [`Writer::finish`] writes
/// the end record, which shows a reader that the log is complete; a log without it is readable and counts as cut off. The
/// writer buffers its output.
///
/// # Errors
/// Every method returns an error of the file, or the one of the [conditions](super#conditions) that the record does not
/// meet. Such a record is not written, and the log stays valid.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: BufWriter<W>,
    declared: Declared,
    /// The bytes of the current record; the vector is reused.
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

    /// Writes the next declaration, call, span or time.
    #[inline]
    pub fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let taken = match record {
            Record::Op(op) => {
                let fits = self.declared.check(op);
                if fits.is_ok() {
                    put_op(&mut self.record, op, &self.declared);
                    self.declared.add_op(op);
                }
                fits
            }
            Record::Stream { .. }
            | Record::Event { .. }
            | Record::Buffer { .. }
            | Record::Thread { .. }
            | Record::Site { .. }
            | Record::Pool { .. }
            | Record::Span { .. }
            | Record::Done(_) => self.declare(record),
        };
        match taken {
            Ok(()) => self.write_record(),
            Err(problem) => Err(self.error(problem)),
        }
    }

    #[cold]
    fn declare(&mut self, record: &Record<'_>) -> Result<(), Problem> {
        self.record.push(tag_of(record));
        let Ok(_) = fields(&mut self.record, record.clone(), &self.declared);
        let fits = self.declared.add(record);
        if fits.is_err() {
            self.record.clear();
        }
        fits
    }

    /// Returns the length of the log so far, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.written
    }

    /// Writes the buffered records to the file, so that they survive the end of this process.
    pub fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.error(Problem::Io(error)))
    }

    /// Ends the log and returns the file.
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
