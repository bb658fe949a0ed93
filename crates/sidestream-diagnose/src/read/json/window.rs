//! A window over a file, filled as it is needed.

use std::io::{self, Read};

/// The number of bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;
/// The largest window. Events of profilers are far smaller; one that does not fit is damaged.
const MOST_BYTES: usize = 16 << 20;

/// A window that moves over the bytes of a reader.
#[derive(Debug)]
pub struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of bytes before the buffer.
    before: u64,
    ended: Option<End>,
}

/// Why the input ended.
#[derive(Debug)]
pub enum End {
    /// The input is complete.
    Whole,
    /// The next bytes cannot be read.
    Failed(io::Error),
}

impl<R: Read> Window<R> {
    /// Returns a window at the start of the input.
    pub fn new(input: R) -> Window<R> {
        Window {
            input,
            buffer: vec![0; 2 * STEP_BYTES],
            start: 0,
            end: 0,
            before: 0,
            ended: None,
        }
    }

    /// Returns the bytes in the window.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Advances the window by `bytes`.
    pub fn consume(&mut self, bytes: usize) {
        self.start = self.end.min(self.start + bytes);
    }

    /// Returns the number of bytes before those in the window.
    pub fn offset(&self) -> u64 {
        self.before + self.start as u64
    }

    /// Returns why the input ended, if it did.
    pub fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Extends the window; returns false if there are no more bytes, or no room for them.
    pub fn more(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.before += self.start as u64;
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            if self.end >= MOST_BYTES {
                return false;
            }
            self.buffer.resize(2 * self.end, 0);
        }
        let had = self.end;
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.ended = Some(End::Whole);
                    return self.end > had;
                }
                Ok(read) => {
                    self.end += read;
                    // A few long windows are faster than many short ones.
                    if self.end >= STEP_BYTES.min(self.buffer.len()) {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = Some(End::Failed(error));
                    return self.end > had;
                }
            }
        }
    }
}
