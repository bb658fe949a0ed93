//! The last accesses to every byte of memory.
//!
//! State is kept by physical byte, not by buffer: an access stays stored after a free, so the next use of the bytes is
//! compared with it (R52 to R56). For each range the state is the last write and, since that write, the last read of
//! every chain, its last access that may write and, by buffer, its last atomic one: its size is bounded by the numbers of
//! ranges, chains and buffers, however long the program runs.
//!
//! # Why this state is sufficient, and why an ordered pair is never reported
//! Each stored access carries its own epoch and is compared by itself with the clock of the new one, so a pair
//! is reported exactly if the clocks do not order it; nothing is concluded from an earlier result. FastTrack
//! (Flanagan and Freund, PLDI 2009) stores less: it drops reads that a later read is ordered after, and keeps one of
//! several racing writes, which is correct only up to the first race. Here "last" means last in call order,
//! whether it raced or not. So a pair of accesses is compared if no write to the bytes was called between them
//! and, if the first is a read, no further read of its chain. Any other pair is either ordered, or there is a compared
//! pair between the two that is unordered. An access that may write counts as neither: it hides only an earlier one of its
//! chain that may write, too. So does an atomic one, which hides only an earlier one of its chain and buffer.

use super::hazard::{Now, RaceKind, Use, is_guess, kind_of};
use super::ranges::{END, Ranges};
use super::reads::Reads;
use crate::log::Within;
use crate::op::{Access, BufferId, Memory, Mode, OpId};
use crate::order::{Epoch, Known, Performs};

/// The last accesses to all memory.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    buffers: Vec<Placed>,
    roots: Vec<Root>,
}

/// The place of a buffer: `offset` bytes into a root.
#[derive(Debug)]
struct Placed {
    root: u32,
    memory: Memory,
    offset: u64,
}

/// Bytes that no other root shares. While they are one cell, a root takes three cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Root {
    bytes: u64,
    cells: Ranges<Cell>,
}

/// The last accesses to some bytes.
#[derive(Clone, Debug)]
struct Cell {
    write: Use,
    /// The last read of every chain since the write, its last access that may write and its last atomic ones.
    reads: Reads,
}

/// An earlier access that the clocks do not order before the current one.
#[derive(Debug)]
pub(super) struct Unordered {
    pub first: Use,
    pub second: Use,
}

impl Shadow {
    pub(super) fn add(&mut self, memory: Memory, bytes: u64, within: Option<Within>) -> BufferId {
        let (root, offset) = match within {
            None => {
                self.roots.push(Root {
                    bytes: 0,
                    cells: Ranges::default(),
                });
                (self.roots.len() as u32 - 1, 0)
            }
            Some(Within { buffer, start }) => {
                let outer = &self.buffers[buffer.0 as usize];
                (outer.root, outer.offset.saturating_add(start))
            }
        };
        let known = &mut self.roots[root as usize].bytes;
        *known = (*known).max(offset.saturating_add(bytes));
        self.buffers.push(Placed {
            root,
            memory,
            offset,
        });
        BufferId(self.buffers.len() as u32 - 1)
    }

    pub(super) fn memory_of(&self, buffer: BufferId) -> Memory {
        self.buffers[buffer.0 as usize].memory
    }

    /// Compares the accesses of a step with the earlier ones, and stores them. `now` is the step; `known` is the
    /// clock of its chain.
    pub(super) fn perform(
        &mut self,
        accesses: &[Access],
        performs: Performs,
        now: &Now,
        known: Known<'_>,
        found: &mut Vec<Unordered>,
    ) {
        if self.may_overlap(accesses) {
            self.perform_overlapping(accesses, performs, now, known, found);
            return;
        }
        for access in accesses {
            let included = performs == Performs::All || performs.includes(access);
            if !included || access.start >= access.end {
                continue;
            }
            let (root, start, end) = self.locate(access);
            let cells = &mut self.roots[root].cells;
            match cells.whole(start, end) {
                Some(cell) => cell.take(now, access, known, found),
                None => take_part(cells, start, end, now, access, known, found),
            }
        }
    }

    /// Calls back for each earlier access of another chain that conflicts with an access of a step on this chain.
    pub(super) fn conflicts(
        &mut self,
        accesses: &[Access],
        performs: Performs,
        chain: u32,
        mut tell: impl FnMut(Epoch),
    ) {
        let touches = |access: &&Access| performs.includes(access) && access.start < access.end;
        for access in accesses.iter().filter(touches) {
            let (root, start, end) = self.locate(access);
            let writes = access.mode != Mode::Read;
            let atomic_of = (access.mode == Mode::Atomic).then_some(access.buffer);
            self.roots[root].cells.visit(start, end, |cell| {
                let mut tell = |earlier: &Use| {
                    let both_atomic = atomic_of.is_some() && earlier.atomic_of() == atomic_of;
                    if !earlier.is_none() && earlier.epoch.chain != chain && !both_atomic {
                        tell(earlier.epoch);
                    }
                };
                tell(&cell.write);
                cell.reads.for_each_guess(&mut tell);
                if writes {
                    cell.reads.for_each(tell);
                }
            });
        }
    }

    /// Finds the accesses from step `since` of the same chain on that conflict with those of a step, which need not come after
    /// them.
    pub(super) fn overlapping(
        &mut self,
        accesses: &[Access],
        since: u32,
        now: &Now,
        found: &mut Vec<Unordered>,
    ) {
        let chain = now.chain();
        let may_overlap = |first: &Use| first.epoch.chain == chain && first.epoch.tick >= since;
        for access in accesses.iter().filter(|access| access.start < access.end) {
            let (root, start, end) = self.locate(access);
            let now = now.with(access);
            let cells = &mut self.roots[root].cells;
            cells.visit(start, end, |cell| cell.note(&now, may_overlap, found));
        }
    }

    /// Like [`Shadow::perform`], but for accesses that may overlap: all of them are compared before any is
    /// stored, and reads are stored before writes, so that none hides an access with which another must
    /// be compared.
    #[cold]
    fn perform_overlapping(
        &mut self,
        accesses: &[Access],
        performs: Performs,
        now: &Now,
        known: Known<'_>,
        found: &mut Vec<Unordered>,
    ) {
        let touches = |access: &&Access| performs.includes(access) && access.start < access.end;
        let some = accesses.iter().filter(touches);
        for access in some.clone() {
            let (root, start, end) = self.locate(access);
            let cells = &mut self.roots[root].cells;
            cells.visit(start, end, |cell| cell.check(now, access, known, found));
        }
        for access in some.clone().filter(|access| access.mode != Mode::Write) {
            let (root, start, end) = self.locate(access);
            let cells = &mut self.roots[root].cells;
            cells.visit(start, end, |cell| cell.store(now, access));
        }
        for access in some.filter(|access| access.mode == Mode::Write) {
            let (root, start, end) = self.locate(access);
            self.roots[root].write_beside_own_reads(start, end, now.with(access));
        }
    }

    /// Returns the root of an access and its byte range there; a range of the whole root ends at [`END`].
    #[inline]
    fn locate(&self, access: &Access) -> (usize, u64, u64) {
        let Placed { root, offset, .. } = self.buffers[access.buffer.0 as usize];
        let start = offset.saturating_add(access.start);
        let end = offset.saturating_add(access.end);
        let whole = end >= self.roots[root as usize].bytes;
        (root as usize, start, if whole { END } else { end })
    }

    /// Whether some of the accesses may overlap. If there are many, the result is true, since comparing all pairs is
    /// slow.
    #[inline]
    fn may_overlap(&self, accesses: &[Access]) -> bool {
        let root = |access: &Access| self.buffers[access.buffer.0 as usize].root;
        match accesses {
            [] | [_] => false,
            [a, b] => root(a) == root(b),
            [a, b, c] => {
                let (a, b, c) = (root(a), root(b), root(c));
                a == b || b == c || a == c
            }
            _ => true,
        }
    }
}

/// Compares and stores an access to a part of a root, or to a root that is split.
#[inline(never)]
fn take_part(
    cells: &mut Ranges<Cell>,
    start: u64,
    end: u64,
    now: &Now,
    access: &Access,
    known: Known<'_>,
    found: &mut Vec<Unordered>,
) {
    cells.visit(start, end, |cell| cell.take(now, access, known, found));
    if access.mode == Mode::Write {
        cells.merge(start, end);
    }
}

impl Cell {
    /// Compares an access with the earlier ones and stores it. The new entry is written in place, field by field:
    /// copying a complete entry would stall on the stores of its fields.
    #[inline(always)]
    fn take(&mut self, now: &Now, access: &Access, known: Known<'_>, found: &mut Vec<Unordered>) {
        self.check(now, access, known, found);
        self.store(now, access);
    }

    #[inline(always)]
    fn store(&mut self, now: &Now, access: &Access) {
        match access.mode {
            Mode::Read => *self.reads.place(now.chain()) = now.with(access),
            Mode::Write => {
                self.reads.clear();
                self.write = now.with(access);
            }
            Mode::MayWrite | Mode::Atomic => self.reads.set_guess(now.with(access)),
        }
    }

    #[inline(always)]
    fn check(&self, now: &Now, access: &Access, known: Known<'_>, found: &mut Vec<Unordered>) {
        let writes = access.mode != Mode::Read;
        let near = known.near;
        if !self.write.is_surely_before(near)
            || !self.reads.guesses_surely_before(near)
            || (writes && !self.reads.all_surely_before(near))
        {
            self.note(&now.with(access), |first| !first.is_before(&known), found);
        }
    }

    #[cold]
    fn note(&self, now: &Use, is_unordered: impl Fn(&Use) -> bool, found: &mut Vec<Unordered>) {
        let atomic_of = now.atomic_of();
        let mut compare = |first: &Use| {
            let both_atomic = atomic_of.is_some() && first.atomic_of() == atomic_of;
            if !first.is_none() && first.op != now.op && !both_atomic && is_unordered(first) {
                let (first, second) = (*first, *now);
                Unordered { first, second }.add_to(found);
            }
        };
        compare(&self.write);
        self.reads.for_each_guess(&mut compare);
        if now.writes() {
            self.reads.for_each(compare);
        }
    }
}

impl Default for Cell {
    fn default() -> Self {
        Cell {
            write: Use::NONE,
            reads: Reads::default(),
        }
    }
}

impl Root {
    /// Stores a write of an operation that may also read the bytes: the entry then represents both.
    fn write_beside_own_reads(&mut self, start: u64, end: u64, now: Use) {
        let mut like = None;
        let mut alike = true;
        self.cells.visit(start, end, |cell| {
            let mut write = now;
            let reads_too = |own: &Use| own.reads() && own.op == now.op && own.buffer == now.buffer;
            let mut has_read = reads_too(&cell.write);
            cell.reads.for_each(|read| has_read |= reads_too(read));
            cell.reads
                .for_each_guess(|read| has_read |= reads_too(read));
            if has_read {
                write.add_read();
            }
            // A read that names another buffer of the same bytes is stored in addition to the write.
            let mut by_other_name = None;
            cell.reads.for_each(|read| {
                if read.op == now.op && read.buffer != now.buffer {
                    by_other_name = Some(*read);
                }
            });
            cell.reads.clear();
            cell.write = write;
            if let Some(read) = by_other_name {
                *cell.reads.place(read.epoch.chain) = read;
            }
            let kept = (write.reads(), by_other_name.map(|read| read.buffer));
            alike &= *like.get_or_insert(kept) == kept;
        });
        if alike {
            self.cells.merge(start, end);
        }
    }
}

impl Unordered {
    /// Adds the access to the list of unordered ones. The same pair may be found in many cells, so duplicates are
    /// dropped before the list grows beyond a size that an ordinary operation never reaches.
    fn add_to(self, found: &mut Vec<Unordered>) {
        if found.len() >= 4_096 && found.len() == found.capacity() {
            Unordered::keep_one_a_pair(found);
        }
        found.push(self);
    }

    /// Keeps one entry for each earlier operation and buffer: one that is certain, whose kind takes precedence.
    pub(super) fn keep_one_a_pair(found: &mut Vec<Unordered>) {
        found.sort_by_key(|pair| (pair.pair(), pair.is_uncertain(), pair.kind()));
        found.dedup_by_key(|pair| pair.pair());
    }

    /// Returns the race kind of the pair.
    pub(super) fn kind(&self) -> RaceKind {
        kind_of(&self.first, &self.second)
    }

    /// Whether the pair is a race only if an access writes that may only read, or a kernel does not wait that may wait.
    fn is_uncertain(&self) -> bool {
        is_guess(&self.first, &self.second) || self.second.is_early()
    }

    /// Returns the earlier operation and the buffer: one entry is kept for each.
    pub(super) fn pair(&self) -> (OpId, BufferId) {
        (self.first.op, self.second.buffer)
    }
}
