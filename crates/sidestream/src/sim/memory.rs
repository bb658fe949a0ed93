//! The memory of the simulated machine: which operation wrote each byte.
//!
//! The operations of a stream program have no code, so their bytes have no values. What an operation that ran too early or
//! too late finds differs in who wrote it.

use crate::op::{Access, BufferId, Mode, OpId};

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
    /// Number of atomic accesses since. None finds those of others, as their order does not matter to it.
    pub atomics: Option<u32>,
}

impl Found {
    /// Whether another run found other contents in the bytes that both have.
    pub fn is_unlike(&self, other: &Found) -> bool {
        let counts = self.atomics.zip(other.atomics);
        self.writer != other.writer || counts.is_some_and(|(a, b)| a != b)
    }
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
        let mut last: Option<Found> = None;
        self.arenas[arena as usize].each(start, end, |start, end, (writer, atomics)| {
            let found = Found {
                arena,
                start,
                end,
                writer: (writer != NO_WRITER).then_some(writer),
                atomics: (access.mode != Mode::Atomic).then_some(atomics),
            };
            match &mut last {
                Some(last) if (last.writer, last.atomics) == (found.writer, found.atomics) => {
                    last.end = end
                }
                _ => last.replace(found).into_iter().for_each(&mut report),
            }
        });
        last.into_iter().for_each(report);
    }

    /// Notes that an operation wrote the bytes of an access.
    pub(super) fn wrote(&mut self, access: &Access, by: OpId) {
        let (arena, start, end) = self.place(access);
        let writers = &mut self.arenas[arena as usize];
        if access.mode == Mode::Atomic {
            writers.add(start, end);
        } else {
            writers.set(start, end, (by, 0));
        }
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
    from: Vec<(u64, Last)>,
}

/// The last writer of some bytes, and the number of atomic accesses since.
type Last = (OpId, u32);

impl Writers {
    fn each(&self, start: u64, end: u64, mut report: impl FnMut(u64, u64, Last)) {
        let mut at = start;
        let mut next = self.from.partition_point(|&(from, _)| from <= start);
        while at < end {
            let last = next.checked_sub(1).map_or(NEVER, |i| self.from[i].1);
            let until = self.from.get(next).map_or(end, |&(from, _)| from.min(end));
            report(at, until, last);
            at = until;
            next += 1;
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let mut parts = Vec::new();
        self.each(start, end, |start, end, last| {
            parts.push((start, end, last))
        });
        for (start, end, (by, atomics)) in parts {
            self.set(start, end, (by, atomics.saturating_add(1)));
        }
    }

    fn set(&mut self, start: u64, end: u64, by: Last) {
        if start >= end {
            return;
        }
        let first = self.from.partition_point(|&(from, _)| from < start);
        let past = self.from.partition_point(|&(from, _)| from <= end);
        // The writer at `end` remains the writer of the bytes that follow.
        let after = past.checked_sub(1).map_or(NEVER, |i| self.from[i].1);
        self.from.splice(first..past, [(start, by), (end, after)]);
    }
}

/// The entry for bytes that no operation has written yet.
const NO_WRITER: OpId = OpId(u32::MAX);
const NEVER: Last = (NO_WRITER, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_split_and_cover() {
        let mut writers = Writers::default();
        let mut plain = [NEVER; 40];
        let mut random = 7u64;
        for op in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let (a, b) = (random >> 33 & 31, random >> 50 & 31);
            let (start, end) = (a.min(b), a.max(b));
            if op % 3 == 0 {
                writers.add(start, end);
                (plain[start as usize..end as usize].iter_mut()).for_each(|last| last.1 += 1);
            } else {
                writers.set(start, end, (OpId(op), 0));
                plain[start as usize..end as usize].fill((OpId(op), 0));
            }
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
