//! The bytes of the simulated machine, and which operation wrote them.
//!
//! Kernels of stream programs have no code. In their place the simulator writes a hash of what they read, so
//! that an operation that ran too early or too late changes the bytes that are left.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::op::{Access, BufferId, OpId};

/// All buffers. Host memory for them is allocated at their first use.
#[derive(Debug, Default)]
pub struct Contents {
    buffers: Vec<Placed>,
    arenas: Vec<Arena>,
    reserved_bytes: u64,
    /// Whether the operation that last wrote each byte is stored.
    witness: bool,
}

/// The place of a buffer.
#[derive(Clone, Copy, Debug)]
struct Placed {
    arena: usize,
    start: u64,
    size_bytes: u64,
}

#[derive(Debug)]
struct Arena {
    size_bytes: u64,
    bytes: Vec<u8>,
    writers: Writers,
}

/// The largest total size of all buffers.
pub const LIMIT_BYTES: u64 = 1 << 30;

/// The reason why a buffer could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unplaceable {
    /// All buffers together would be larger than [`LIMIT_BYTES`].
    TooLarge {
        /// The total size of all buffers.
        wanted_bytes: u64,
    },
    /// The buffer does not fit into the earlier buffer whose bytes it was to use.
    Outside,
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unplaceable::TooLarge { wanted_bytes } => write!(
                f,
                "its buffers take {wanted_bytes} bytes in total; the simulated GPU keeps them in this \
                 machine's memory and stops at {LIMIT_BYTES}: use smaller buffers"
            ),
            Unplaceable::Outside => write!(
                f,
                "a buffer does not fit into the buffer whose bytes it uses"
            ),
        }
    }
}

impl std::error::Error for Unplaceable {}

/// A range of bytes, and the operation that had written it when it was accessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Found {
    /// The memory, which may contain several buffers.
    pub arena: u32,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The last operation that had written the bytes.
    pub writer: Option<OpId>,
}

impl Contents {
    /// Returns contents without buffers; `witness` enables [`Contents::found`].
    pub fn new(witness: bool) -> Contents {
        Contents {
            witness,
            ..Contents::default()
        }
    }

    /// Adds a buffer with its own bytes, or one that uses the bytes of an earlier buffer, starting at an offset.
    ///
    /// # Errors
    /// If the buffer does not fit.
    pub fn add(
        &mut self,
        size_bytes: u64,
        over: Option<(BufferId, u64)>,
    ) -> Result<BufferId, Unplaceable> {
        let placed = match over {
            Some((earlier, offset)) => {
                let below = self.buffers[earlier.0 as usize];
                let start = below.start.saturating_add(offset);
                let end = start.saturating_add(size_bytes);
                if end > self.arenas[below.arena].size_bytes {
                    return Err(Unplaceable::Outside);
                }
                Placed {
                    arena: below.arena,
                    start,
                    size_bytes,
                }
            }
            None => {
                let wanted_bytes = self.reserved_bytes.saturating_add(size_bytes);
                if wanted_bytes > LIMIT_BYTES {
                    return Err(Unplaceable::TooLarge { wanted_bytes });
                }
                self.reserved_bytes = wanted_bytes;
                self.arenas.push(Arena {
                    size_bytes,
                    bytes: Vec::new(),
                    writers: Writers::default(),
                });
                Placed {
                    arena: self.arenas.len() - 1,
                    start: 0,
                    size_bytes,
                }
            }
        };
        self.buffers.push(placed);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// Hashes the bytes of an access into `seed`.
    pub fn hash(&mut self, access: &Access, seed: u64) -> u64 {
        xxh3_64_with_seed(self.bytes(access), seed)
    }

    /// Fills the bytes of an access with a pattern made from `value`.
    pub fn fill(&mut self, access: &Access, value: u64) {
        let step = value | 1;
        let mut word = value;
        let (words, rest) = self.bytes(access).as_chunks_mut::<8>();
        for bytes in words {
            *bytes = word.to_le_bytes();
            word = word.wrapping_add(step);
        }
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }

    /// Returns a copy of the bytes of an access.
    pub fn load(&mut self, access: &Access) -> Vec<u8> {
        self.bytes(access).to_vec()
    }

    /// Writes bytes at the start of an access, as many as the shorter of the two has.
    pub fn store(&mut self, access: &Access, bytes: &[u8]) {
        let target = self.bytes(access);
        let len = target.len().min(bytes.len());
        target[..len].copy_from_slice(&bytes[..len]);
    }

    /// Returns a digest of all bytes of a buffer.
    pub fn digest(&mut self, buffer: BufferId) -> u64 {
        let whole = Access {
            buffer,
            start: 0,
            end: self.buffers[buffer.0 as usize].size_bytes,
            mode: crate::op::Mode::Read,
        };
        self.hash(&whole, 0)
    }

    /// Calls `report` for each range of an access, with the operation that wrote it.
    pub fn found(&self, access: &Access, mut report: impl FnMut(Found)) {
        if !self.witness {
            return;
        }
        let (arena, start, end) = self.place(access);
        self.arenas[arena as usize]
            .writers
            .each(start, end, |start, end, writer| {
                report(Found {
                    arena,
                    start,
                    end,
                    writer,
                });
            });
    }

    /// Notes that an operation wrote the bytes of an access.
    pub fn wrote(&mut self, access: &Access, by: OpId) {
        if self.witness {
            let (arena, start, end) = self.place(access);
            self.arenas[arena as usize].writers.set(start, end, by);
        }
    }

    /// Returns the place of an access: the memory, the first byte, and one past the last.
    pub(super) fn place(&self, access: &Access) -> (u32, u64, u64) {
        let at = self.buffers[access.buffer.0 as usize];
        let start = at.start + access.start.min(at.size_bytes);
        let end = at.start + access.end.min(at.size_bytes);
        (at.arena as u32, start, end)
    }

    fn bytes(&mut self, access: &Access) -> &mut [u8] {
        let (arena, start, end) = self.place(access);
        let arena = &mut self.arenas[arena as usize];
        if arena.bytes.is_empty() {
            arena.bytes = vec![0; arena.size_bytes as usize];
        }
        &mut arena.bytes[start as usize..end as usize]
    }
}

/// The last writer of each byte: a sorted list of starts, each with the writer up to the next start.
#[derive(Debug, Default)]
struct Writers {
    from: Vec<(u64, OpId)>,
}

impl Writers {
    fn each(&self, start: u64, end: u64, mut report: impl FnMut(u64, u64, Option<OpId>)) {
        let mut at = start;
        let mut next = self.from.partition_point(|&(from, _)| from <= start);
        while at < end {
            let writer = next.checked_sub(1).map(|i| self.from[i].1);
            let until = self.from.get(next).map_or(end, |&(from, _)| from.min(end));
            report(at, until, writer.filter(|&op| op != NO_WRITER));
            at = until;
            next += 1;
        }
    }

    fn set(&mut self, start: u64, end: u64, by: OpId) {
        if start >= end {
            return;
        }
        let first = self.from.partition_point(|&(from, _)| from < start);
        let past = self.from.partition_point(|&(from, _)| from <= end);
        // The writer at `end` remains the writer of the bytes that follow.
        let after = past.checked_sub(1).map_or(NO_WRITER, |i| self.from[i].1);
        self.from.splice(first..past, [(start, by), (end, after)]);
    }
}

/// The entry for bytes that no operation has written yet.
const NO_WRITER: OpId = OpId(u32::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_split_and_cover() {
        let mut writers = Writers::default();
        let mut plain = [None; 40];
        let mut random = 7u64;
        for op in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let (a, b) = (random >> 33 & 31, random >> 50 & 31);
            let (start, end) = (a.min(b), a.max(b));
            writers.set(start, end, OpId(op));
            plain[start as usize..end as usize].fill(Some(OpId(op)));
            let mut seen = Vec::new();
            writers.each(0, 40, |s, e, w| seen.extend((s..e).map(|_| w)));
            assert_eq!(seen, plain, "after op {op} wrote {start}..{end}");
        }
        assert!(
            writers.from.len() <= 33,
            "neighbouring ranges with one writer are merged"
        );
    }
}
