//! The part of a file that is looked at, read as it is needed.

use std::io::{self, Read};

/// What is read at a time.
const STEP_BYTES: usize = 1 << 20;
/// The largest window. No event of a profiler's comes near; one that does not fit is damaged.
const MOST_BYTES: usize = 16 << 20;

/// A window that moves over the bytes of a reader.
#[derive(Debug)]
pub struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How many bytes came before the buffer.
    before: u64,
    ended: Option<End>,
}

/// Why nothing more comes.
#[derive(Debug)]
pub enum End {
    /// That was all.
    Whole,
    /// What comes next cannot be read.
    Failed(io::Error),
}

impl<R: Read> Window<R> {
    /// At the start of what the reader gives.
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

    /// The bytes that are in view.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Moves on.
    pub fn consume(&mut self, bytes: usize) {
        self.start = self.end.min(self.start + bytes);
    }

    /// How many bytes came before those in view.
    pub fn offset(&self) -> u64 {
        self.before + self.start as u64
    }

    /// Why nothing more comes, if so.
    pub fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Brings more bytes into view; false if there are none, or no room for them.
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
                    // Few long windows are quicker than many short ones.
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
