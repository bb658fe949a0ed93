//! The uses of a block of memory by streams, and the rule by which a new use waits for earlier ones. The nodes of a
//! graph find the earlier nodes that they depend on by the same rule.
//!
//! A block is a sequence of cells: ranges of bytes with the same history. A cell has its last write and the reads
//! since, one per stream. Earlier uses need not be kept: a write is ordered after all uses that it conflicts with, so a
//! wait for the write covers them. A new use splits the cells at its ends; a write replaces all cells that it covers by
//! one.

use std::ops::Range;

use smallvec::{Array, SmallVec};

use super::mark::Mark;
use crate::op::Mode;

/// The uses of a block that may not be complete, each represented by a mark. For memory that was never used there is
/// no allocation; otherwise the history is boxed, because it passes with the memory from owner to owner and is too
/// large to move.
#[derive(Clone, Debug)]
pub(crate) struct Uses<M = Mark>(Option<Box<History<M>>>);

#[derive(Clone, Debug)]
struct History<M> {
    /// The last uses by the previous owner, in any range: every use of the block is ordered after all of them, until
    /// the whole block has been written.
    before: Conflicts<M>,
    /// Size in bytes of the whole block, which tells when the whole block has been written.
    whole_bytes: u64,
    /// Sorted, disjoint cells; bytes outside of them were not used.
    cells: SmallVec<[Cell<M>; 1]>,
}

/// The representation of a use.
pub(crate) trait UseMark: Clone {
    /// Whether this mark is ordered after `earlier` by construction, so that a wait for it covers `earlier`.
    fn replaces(&self, earlier: &Self) -> bool;
}

impl UseMark for Mark {
    /// Returns whether both marks are on one stream; this mark is the later one.
    #[inline]
    fn replaces(&self, earlier: &Mark) -> bool {
        self.epoch().chain == earlier.epoch().chain
    }
}

#[derive(Clone, Debug)]
struct Cell<M> {
    start: u64,
    end: u64,
    /// The last write; there are several only if some calls were refused.
    writes: SmallVec<[M; 1]>,
    /// The last read of each stream.
    reads: SmallVec<[M; 1]>,
}

/// Marks of the uses that a new use conflicts with.
pub(crate) type Conflicts<M = Mark> = SmallVec<[M; 2]>;

impl<M> Default for Uses<M> {
    #[inline]
    fn default() -> Uses<M> {
        Uses(None)
    }
}

impl<M> Default for History<M> {
    fn default() -> History<M> {
        History {
            before: Conflicts::new(),
            whole_bytes: 0,
            cells: SmallVec::new(),
        }
    }
}

impl<M: UseMark> Uses<M> {
    /// Calls `found` with each mark that a use of these bytes has to be ordered after.
    #[inline(always)]
    pub(crate) fn conflicts(&self, bytes: Range<u64>, mode: Mode, found: impl FnMut(&M)) {
        if let Some(history) = &self.0 {
            history.conflicts(bytes, mode, found);
        }
    }

    /// Notes a use, which is ordered after all uses that it conflicts with.
    #[inline(always)]
    pub(crate) fn note(&mut self, bytes: Range<u64>, mode: Mode, mark: M) {
        self.0.get_or_insert_default().note(bytes, mode, mark);
    }

    /// Notes a write that may not be ordered after all uses that it conflicts with, so that no earlier use is
    /// forgotten.
    #[cold]
    pub(crate) fn note_beside(&mut self, bytes: Range<u64>, mark: &M) {
        self.0.get_or_insert_default().note_beside(bytes, mark);
    }
}

impl<M: UseMark> History<M> {
    // Inlined, because it is part of every call that uses memory.
    #[inline(always)]
    fn conflicts(&self, bytes: Range<u64>, mode: Mode, mut found: impl FnMut(&M)) {
        if bytes.is_empty() {
            return;
        }
        // Plain loops, since closures of iterator adaptors would not be inlined here.
        for mark in &self.before {
            found(mark);
        }
        for cell in &self.cells[self.first_behind(bytes.start)..] {
            if cell.start >= bytes.end {
                break;
            }
            for mark in &cell.writes {
                found(mark);
            }
            if mode != Mode::Read {
                for mark in &cell.reads {
                    found(mark);
                }
            }
        }
    }

    #[inline(always)]
    fn note(&mut self, bytes: Range<u64>, mode: Mode, mark: M) {
        if bytes.is_empty() {
            return;
        }
        if mode == Mode::Write && bytes.start == 0 && bytes.end >= self.whole_bytes {
            self.before.clear();
        }
        // A fast path: a block is almost always used in the same range as before.
        if let [cell] = &mut self.cells[..]
            && (cell.start, cell.end) == (bytes.start, bytes.end)
        {
            return cell.note(mode, mark);
        }
        self.note_part(bytes, mode, mark);
    }

    fn note_beside(&mut self, bytes: Range<u64>, mark: &M) {
        if !bytes.is_empty() {
            self.split_at(bytes.start);
            self.split_at(bytes.end);
            self.in_each(bytes, |cell| put(&mut cell.writes, mark.clone()));
        }
    }

    fn note_part(&mut self, bytes: Range<u64>, mode: Mode, mark: M) {
        self.split_at(bytes.start);
        self.split_at(bytes.end);
        match mode {
            Mode::Write | Mode::MayWrite | Mode::Atomic => {
                let first = self.first_behind(bytes.start);
                let covered = self.cells[first..]
                    .iter()
                    .take_while(|cell| cell.start < bytes.end)
                    .count();
                self.cells.drain(first..first + covered);
                let mut cell = Cell::new(bytes);
                cell.note(mode, mark);
                self.cells.insert(first, cell);
            }
            Mode::Read => self.in_each(bytes, |cell| cell.note(mode, mark.clone())),
        }
    }

    /// Calls `act` for cells that cover exactly these bytes; cells have already been split at both ends.
    fn in_each(&mut self, bytes: Range<u64>, mut act: impl FnMut(&mut Cell<M>)) {
        let mut at = self.first_behind(bytes.start);
        let mut from = bytes.start;
        while from < bytes.end {
            let next = self.cells.get(at).map_or(u64::MAX, |cell| cell.start);
            if next > from {
                let gap = from..next.min(bytes.end);
                self.cells.insert(at, Cell::new(gap));
            }
            let cell = &mut self.cells[at];
            act(cell);
            from = cell.end;
            at += 1;
        }
    }

    /// Returns the index of the first cell that ends after `at`.
    #[inline]
    fn first_behind(&self, at: u64) -> usize {
        match &self.cells[..] {
            [only] => usize::from(only.end <= at),
            cells => cells.partition_point(|cell| cell.end <= at),
        }
    }

    fn split_at(&mut self, at: u64) {
        let index = self.first_behind(at);
        let Some(cell) = self.cells.get_mut(index) else {
            return;
        };
        if cell.start < at {
            let mut right = cell.clone();
            right.start = at;
            cell.end = at;
            self.cells.insert(index + 1, right);
        }
    }
}

impl Uses {
    /// Returns the uses of a new block: only those of the previous owner.
    pub(crate) fn before(before: Conflicts) -> Uses {
        if before.is_empty() {
            return Uses(None);
        }
        Uses(Some(Box::new(History {
            before,
            ..History::default()
        })))
    }

    /// Passes the uses to the memory's next owner, which owns `whole_bytes` bytes.
    #[inline]
    pub(crate) fn carried(mut self, whole_bytes: u64) -> Uses {
        if let Some(history) = &mut self.0 {
            history.whole_bytes = whole_bytes;
        }
        self
    }

    /// Forgets the ranges and keeps the last uses of the whole block: the memory's next owner has to be ordered after
    /// all of them.
    #[inline]
    pub(crate) fn all(mut self) -> Uses {
        if let Some(history) = &mut self.0 {
            history.forget_ranges();
        }
        self
    }

    /// Returns the last uses of the whole block, after the ranges are forgotten.
    #[inline]
    pub(crate) fn marks(&self) -> &[Mark] {
        match &self.0 {
            Some(history) => &history.before,
            None => &[],
        }
    }

    /// Like [`Uses::marks`], by value.
    pub(crate) fn into_marks(self) -> Conflicts {
        self.0.map_or_else(Conflicts::new, |history| history.before)
    }

    /// Adds the uses of memory that is merged with this memory.
    pub(crate) fn join(&mut self, other: Uses) {
        let Some(other) = other.0 else { return };
        match &mut self.0 {
            Some(history) => {
                history.before.extend(other.before);
                keep_last(&mut history.before);
            }
            none => *none = Some(other),
        }
    }
}

impl History<Mark> {
    fn forget_ranges(&mut self) {
        if self.cells.is_empty() {
            return;
        }
        for cell in self.cells.drain(..) {
            self.before.extend(cell.reads);
            self.before.extend(cell.writes);
        }
        keep_last(&mut self.before);
    }
}

impl<M: UseMark> Cell<M> {
    fn new(bytes: Range<u64>) -> Cell<M> {
        Cell {
            start: bytes.start,
            end: bytes.end,
            writes: SmallVec::new(),
            reads: SmallVec::new(),
        }
    }

    #[inline(always)]
    fn note(&mut self, mode: Mode, mark: M) {
        match mode {
            Mode::Write | Mode::MayWrite | Mode::Atomic => {
                self.reads.clear();
                match &mut self.writes[..] {
                    [earlier] => *earlier = mark,
                    _ => {
                        self.writes.clear();
                        self.writes.push(mark);
                    }
                }
            }
            Mode::Read => put(&mut self.reads, mark),
        }
    }
}

/// Adds a mark, or puts it in place of one that it replaces.
#[inline]
fn put<M: UseMark>(marks: &mut SmallVec<impl Array<Item = M>>, mark: M) {
    match marks.iter_mut().find(|earlier| mark.replaces(earlier)) {
        Some(earlier) => *earlier = mark,
        None => marks.push(mark),
    }
}

/// Keeps only the last mark of each stream, and drops marks that another one is ordered after. With very many marks,
/// not all pairs are compared: that is safe, since a wait skips marks that are already covered.
pub(crate) fn keep_last(marks: &mut Conflicts) {
    const MANY: usize = 32;
    if marks.len() > MANY {
        marks.sort_by_key(|mark| (mark.epoch().chain, std::cmp::Reverse(mark.epoch().tick)));
        marks.dedup_by_key(|mark| mark.epoch().chain);
    }
    if marks.len() > MANY {
        return;
    }
    let mut at = 0;
    while at < marks.len() {
        let epoch = marks[at].epoch();
        let others = marks.iter().enumerate().filter(|&(other, _)| other != at);
        let covered = others.into_iter().any(|(other, mark)| {
            let same = mark.epoch() == epoch;
            if same {
                other < at
            } else {
                mark.point().covers(epoch)
            }
        });
        if covered {
            marks.swap_remove(at);
        } else {
            at += 1;
        }
    }
}
