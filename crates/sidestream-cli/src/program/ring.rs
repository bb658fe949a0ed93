//! The command's side of a ring: see [`sidestream_inject::wire`].
//!
//! The file is read, not mapped: a program may truncate it, and must not end the command by that. Reading is a call of the
//! system for each of the parts that the program has written meanwhile, not for each record.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sidestream_inject::wire::{
    AT_MAGIC, AT_PID, CLOSED, HEAD, HEADER_WORDS, Head, MAGIC, RING_WORDS, TAIL, Tag,
};

/// The ring of one process.
pub struct SharedRing {
    file: File,
    /// The process's number.
    pub pid: u32,
    read: u64,
    /// The words of the last part; the vectors are reused.
    bytes: Vec<u8>,
    words: Vec<u64>,
}

/// The largest part that is read at once, in words.
const PART: u64 = 1 << 16;

impl SharedRing {
    /// Opens a ring. `None` if the program is still about to create it.
    pub fn open(path: &Path) -> io::Result<Option<SharedRing>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut ring = SharedRing {
            file,
            pid: 0,
            read: 0,
            bytes: Vec::new(),
            words: Vec::new(),
        };
        let bytes = (HEADER_WORDS + RING_WORDS) as u64 * 8;
        if ring.file.metadata()?.len() < bytes || ring.count(AT_MAGIC)? != MAGIC {
            return Ok(None);
        }
        ring.pid = ring.count(AT_PID)? as u32;
        Ok(Some(ring))
    }

    fn count(&self, at: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at as u64 * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Reads no more: the program goes on without waiting.
    pub fn close(&self) {
        let _ = self
            .file
            .write_all_at(&1_u64.to_ne_bytes(), CLOSED as u64 * 8);
    }

    /// Passes the records that were written since the last call, up to some number of words. Returns whether there were any.
    ///
    /// # Errors
    /// If the file cannot be read, or what is in it is no record.
    pub fn take(&mut self, mut each: impl FnMut(Head, &[u64])) -> io::Result<bool> {
        let written = self.count(HEAD)?;
        let size = RING_WORDS as u64;
        let ahead = written
            .checked_sub(self.read)
            .filter(|ahead| *ahead <= size)
            .ok_or_else(broken)?;
        let at = self.read % size;
        let part = ahead.min(size - at).min(PART);
        if part == 0 {
            return Ok(false);
        }
        self.bytes.resize(part as usize * 8, 0);
        self.file
            .read_exact_at(&mut self.bytes, (HEADER_WORDS as u64 + at) * 8)?;
        self.words.clear();
        let (words, _) = self.bytes.as_chunks();
        self.words
            .extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        let mut rest = &self.words[..];
        while let Some(&first) = rest.first() {
            let head = Head::of(first).ok_or_else(broken)?;
            if head.tag == Tag::Skip {
                rest = &[];
                self.read += size - self.read % size;
                break;
            }
            // A record at the end of the part that is not complete is read again.
            let Some((record, after)) = rest.split_at_checked(usize::from(head.words)) else {
                break;
            };
            each(head, &record[1..]);
            self.read += record.len() as u64;
            rest = after;
        }
        if rest.len() == self.words.len() {
            return Err(broken());
        }
        self.file
            .write_all_at(&self.read.to_ne_bytes(), TAIL as u64 * 8)?;
        Ok(true)
    }
}

fn broken() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the program has written something else into it",
    )
}

/// Returns the text of this many bytes in some words.
pub fn text(words: &[u64], bytes: u16) -> String {
    let all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&all[..usize::from(bytes).min(all.len())]).into_owned()
}
