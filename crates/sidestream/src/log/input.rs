//! A buffered reader over the bytes of a log that keeps track of the position, for errors.

use std::io::{self, Read};

use super::error::{Error, Problem};
use super::limits;

const BUFFER_BYTES: usize = 64 * 1024;

/// The input from which records are read.
#[derive(Debug)]
pub(super) struct Input<R> {
    inner: R,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// The file offset of the buffer.
    base: u64,
    /// The file offset of the current record.
    start: u64,
    record: &'static str,
}

impl<R: Read> Input<R> {
    pub(super) fn new(inner: R) -> Input<R> {
        Input {
            inner,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            at: 0,
            end: 0,
            base: 0,
            start: 0,
            record: "the header",
        }
    }

    /// Starts a record; its kind is set once its first byte is known.
    #[inline]
    pub(super) fn start(&mut self) {
        self.start = self.base + self.at as u64;
        self.record = "a gap between records";
    }

    /// Sets the kind of the current record, for errors.
    #[inline]
    pub(super) fn is(&mut self, record: &'static str) {
        self.record = record;
    }

    pub(super) fn record_start(&self) -> u64 {
        self.start
    }

    /// Returns an error about the current record.
    #[cold]
    pub(super) fn error(&self, problem: Problem) -> Error {
        let offset = self.start;
        Error { offset, problem }
    }

    #[cold]
    pub(super) fn malformed(&self, expected: &'static str) -> Error {
        self.error(Problem::Malformed { expected })
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        if self.at == self.end && !self.refill()? {
            return Err(self.cut());
        }
        let byte = self.buffer[self.at];
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        for byte in &mut out {
            *byte = self.byte()?;
        }
        Ok(out)
    }

    /// Reads a number in LEB128, in its shortest form.
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Error> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        self.long_number(u64::from(first & 0x7f))
    }

    fn long_number(&mut self, mut value: u64) -> Result<u64, Error> {
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let fits = (bits << shift) >> shift == bits;
            if !fits || byte == 0 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed("a number of at most 64 bits in its shortest form"))
    }

    /// Reads a number that is an id or a count.
    #[inline]
    pub(super) fn small(&mut self) -> Result<u32, Error> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| self.malformed("a number of at most 32 bits"))
    }

    /// Reads a byte of which only the lowest bits may be set.
    #[inline]
    pub(super) fn bits(&mut self, count: u32, expected: &'static str) -> Result<u8, Error> {
        let byte = self.byte()?;
        if byte >> count != 0 {
            return Err(self.malformed(expected));
        }
        Ok(byte)
    }

    pub(super) fn text(&mut self) -> Result<String, Error> {
        let (what, limit) = ("bytes in a name", limits::TEXT_BYTES as u64);
        let length = self.number()?;
        if length > limit {
            return Err(self.error(Problem::TooMuch { what, limit }));
        }
        let mut left = length as usize;
        let mut text = Vec::with_capacity(left);
        while left > 0 {
            if self.at == self.end && !self.refill()? {
                return Err(self.cut());
            }
            let take = left.min(self.end - self.at);
            text.extend_from_slice(&self.buffer[self.at..self.at + take]);
            self.at += take;
            left -= take;
        }
        String::from_utf8(text).map_err(|_| self.malformed("text in UTF-8"))
    }

    /// Whether the input has ended.
    pub(super) fn is_at_end(&mut self) -> Result<bool, Error> {
        Ok(self.at == self.end && !self.refill()?)
    }

    /// Refills the buffer; returns false at the end of the file.
    #[cold]
    fn refill(&mut self) -> Result<bool, Error> {
        self.base += self.end as u64;
        (self.at, self.end) = (0, 0);
        loop {
            match self.inner.read(&mut self.buffer) {
                // A count above the buffer's length is an error: the `Read` is code of the caller and is not trusted.
                Ok(count) => {
                    self.end = count.min(self.buffer.len());
                    return Ok(self.end > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let offset = self.base;
                    let problem = Problem::Io(error);
                    return Err(Error { offset, problem });
                }
            }
        }
    }

    #[cold]
    fn cut(&self) -> Error {
        let (inside, whole) = (self.record, self.start);
        Error {
            offset: self.base + self.end as u64,
            problem: Problem::Cut { inside, whole },
        }
    }
}
