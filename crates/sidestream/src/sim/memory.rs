//! The memory of the simulated machine: which operation wrote each byte.
//!
//! The operations of a stream program have no code, so their bytes have no values. What an operation that ran too early or
//! too late finds differs in who wrote it.

use crate::op::{Access, BufferId, OpId};

/// All buffers.
#[derive(Debug, Default)]
pub struct Contents {
    buffers: Vec<Placed>,
    arenas: Vec<Writers>,
}

/// The place of a buffer.
#[derive(Clone, Copy, Debug)]
struct Placed {
    arena: u32,
    start: u64,
    size_bytes: u64,
}

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
    /// Adds a buffer with its own bytes, or one that uses the bytes of an earlier buffer, starting at an offset.
    pub fn add(&mut self, size_bytes: u64, over: Option<(BufferId, u64)>) -> BufferId {
        let (arena, start) = match over {
            Some((earlier, offset)) => {
                let below = self.buffers[earlier.0 as usize];
                (below.arena, below.start.saturating_add(offset))
            }
            None => {
                self.arenas.push(Writers::default());
                (self.arenas.len() as u32 - 1, 0)
            }
        };
        self.buffers.push(Placed {
            arena,
            start,
            size_bytes,
        });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Calls `report` for each range of an access, with the operation that wrote it.
    pub fn found(&self, access: &Access, mut report: impl FnMut(Found)) {
        let (arena, start, end) = self.place(access);
        self.arenas[arena as usize].each(start, end, |start, end, writer| {
            report(Found {
                arena,
                start,
                end,
                writer,
            });
        });
    }

    /// Notes that an operation wrote the bytes of an access.
    pub(super) fn wrote(&mut self, access: &Access, by: OpId) {
        let (arena, start, end) = self.place(access);
        self.arenas[arena as usize].set(start, end, by);
    }

    /// Returns the place of an access: the memory, the first byte, and one past the last.
    pub(super) fn place(&self, access: &Access) -> (u32, u64, u64) {
        let at = self.buffers[access.buffer.0 as usize];
        let start = at.start + access.start.min(at.size_bytes);
        let end = at.start + access.end.min(at.size_bytes);
        (at.arena, start, end)
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
