//! The program's side of the ring.

use std::fs::OpenOptions;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::system;
use crate::wire::{
    AT_MAGIC, AT_PID, CLOSED, HEAD, HEADER_WORDS, Head, MAGIC, MAX_WORDS, RING_WORDS, TAIL, Tag,
};

/// A ring that this process writes.
pub struct SharedRing {
    words: *mut u64,
    reader: i32,
    /// The count of words written, which is [`HEAD`] outside [`SharedRing::write`].
    written: Mutex<u64>,
    /// Set once the ring is not read any more, and in a forked child: the ring belongs to the parent.
    is_closed: AtomicBool,
}

// SAFETY: the words of the ring between head and tail are written only under the lock, the counts are atomic.
unsafe impl Send for SharedRing {}
// SAFETY: as above.
unsafe impl Sync for SharedRing {}

impl SharedRing {
    /// Creates a ring in the folder, for a reader with this process number.
    pub fn create(folder: &str, reader: i32) -> Option<SharedRing> {
        let pid = std::process::id();
        // A process that replaced its program has the number of the earlier one.
        let file = (0..1000).find_map(|n| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            options.open(format!("{folder}/{pid}.{n}")).ok()
        })?;
        let bytes = (HEADER_WORDS + RING_WORDS) * 8;
        file.set_len(bytes as u64).ok()?;
        let words = system::map(&file, bytes)?;
        let ring = SharedRing {
            words,
            reader,
            written: Mutex::new(0),
            is_closed: AtomicBool::new(false),
        };
        ring.count(AT_PID).store(u64::from(pid), Ordering::Relaxed);
        ring.count(AT_MAGIC).store(MAGIC, Ordering::Release);
        Some(ring)
    }

    fn count(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the position is in the header, which is mapped for good, aligned, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.words.add(at)) }
    }

    /// Writes a record; the head gets its number of words. Waits while the ring is full.
    pub fn write(&self, head: Head, rest: &[u64]) {
        let words = rest.len() + 1;
        if words > MAX_WORDS || !self.is_open() {
            return;
        }
        let Ok(mut written) = self.written.lock() else {
            return;
        };
        let head = Head {
            words: words as u16,
            ..head
        };
        let at = *written as usize % RING_WORDS;
        if RING_WORDS - at < words {
            let skipped = RING_WORDS - at;
            if !self.has_room(*written + (skipped + words) as u64) {
                return;
            }
            let skip = Head {
                words: 1,
                tag: Tag::Skip,
                ..head
            };
            // SAFETY: the position is in the ring, and the reader has read what was there.
            unsafe { self.words.add(HEADER_WORDS + at).write(skip.word()) };
            *written += skipped as u64;
        } else if !self.has_room(*written + words as u64) {
            return;
        }
        let at = *written as usize % RING_WORDS;
        // SAFETY: `words` words from here are in the ring, and the reader has read what was there.
        unsafe {
            let to = self.words.add(HEADER_WORDS + at);
            to.write(head.word());
            to.add(1)
                .copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        *written += words as u64;
        self.count(HEAD).store(*written, Ordering::Release);
    }

    /// Waits until words up to this count fit. Returns whether they do: not if the reader has gone.
    fn has_room(&self, to: u64) -> bool {
        let mut waits = 0_u32;
        while to - self.count(TAIL).load(Ordering::Acquire) > RING_WORDS as u64 {
            let is_closed = self.count(CLOSED).load(Ordering::Relaxed) != 0;
            if is_closed || waits % 1024 == 1023 && !system::is_alive(self.reader) {
                self.close();
                return false;
            }
            waits += 1;
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Writes words.
    pub fn write_words(&self, tag: Tag, words: &[u64]) {
        let head = Head {
            words: 0,
            tag,
            index: 0,
            per_thread: false,
        };
        self.write(head, words);
    }

    /// Writes a text, which is cut to what a record can hold.
    pub fn write_text(&self, tag: Tag, before: &[u64], text: &[u8]) {
        let text = &text[..text.len().min(4096)];
        let mut words = before.to_vec();
        for part in text.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            words.push(u64::from_le_bytes(bytes));
        }
        let index = text.len() as u16;
        self.write(
            Head {
                words: 0,
                tag,
                index,
                per_thread: false,
            },
            &words,
        );
    }

    /// Whether what is written is read.
    pub fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Writes nothing from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}
