//! What streams did to a block of memory, and what a new use has to wait for.
//!
//! A block is a row of cells: ranges of bytes with the same history. A cell keeps its last write and
//! the reads since, one a stream. That is enough: a write stands behind all that it conflicts with,
//! so whoever waits for the write has waited for what came before it. A new use splits the cells at
//! its ends; a write makes one cell of all it covers.

use std::ops::Range;

use smallvec::SmallVec;

use crate::event::Mark;
use crate::op::Mode;

/// The uses of a block that may not be over.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Sorted, disjoint; bytes in none of them were not used.
    cells: SmallVec<[Cell; 1]>,
}

#[derive(Clone, Debug)]
struct Cell {
    start: u64,
    end: u64,
    /// The last write. Of memory that had another owner before: all that this one did last, since
    /// the new owner has to stand behind all of it.
    writes: SmallVec<[Mark; 1]>,
    /// At most one a stream: the last.
    reads: SmallVec<[Mark; 2]>,
}

/// Marks that a use conflicts with.
pub(crate) type Conflicts = SmallVec<[Mark; 4]>;

impl Uses {
    /// Adds to `conflicts` what a use of these bytes has to stand behind, but for what `is_known`
    /// to be there already.
    #[inline]
    pub fn conflicts(
        &self,
        bytes: Range<u64>,
        mode: Mode,
        is_known: impl Fn(&Mark) -> bool,
        conflicts: &mut Conflicts,
    ) {
        if bytes.is_empty() {
            return;
        }
        for cell in &self.cells[self.first_behind(bytes.start)..] {
            if cell.start >= bytes.end {
                break;
            }
            let unknown = cell.writes.iter().filter(|write| !is_known(write));
            conflicts.extend(unknown.cloned());
            if mode == Mode::Write {
                let unknown = cell.reads.iter().filter(|read| !is_known(read));
                conflicts.extend(unknown.cloned());
            }
        }
    }

    /// Notes a use. It stands behind all that it conflicts with.
    #[inline]
    pub fn note(&mut self, bytes: Range<u64>, mode: Mode, mark: &Mark) {
        if bytes.is_empty() {
            return;
        }
        // Nearly always a block is used as it was used before.
        if let [cell] = &mut self.cells[..]
            && (cell.start, cell.end) == (bytes.start, bytes.end)
        {
            return cell.note(mode, mark);
        }
        self.note_part(bytes, mode, mark);
    }

    /// Notes a write that may not stand behind all that it conflicts with, as one that was refused:
    /// nothing is forgotten.
    #[cold]
    pub fn note_beside(&mut self, bytes: Range<u64>, mark: &Mark) {
        if !bytes.is_empty() {
            self.split_at(bytes.start);
            self.split_at(bytes.end);
            self.in_each(bytes, |cell| cell.writes.push(mark.clone()));
        }
    }

    fn note_part(&mut self, bytes: Range<u64>, mode: Mode, mark: &Mark) {
        self.split_at(bytes.start);
        self.split_at(bytes.end);
        let first = self.first_behind(bytes.start);
        let covered = self.cells[first..]
            .iter()
            .take_while(|cell| cell.start < bytes.end)
            .count();
        match mode {
            Mode::Write => {
                self.cells.drain(first..first + covered);
                let mut cell = Cell::new(bytes);
                cell.note(mode, mark);
                self.cells.insert(first, cell);
            }
            Mode::Read => self.in_each(bytes, |cell| cell.note(mode, mark)),
        }
    }

    /// Goes through cells that cover just these bytes, where no cell lies across an end of them.
    fn in_each(&mut self, bytes: Range<u64>, mut act: impl FnMut(&mut Cell)) {
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

    /// Forgets the ranges and keeps what the whole block was last used for: the memory gets another
    /// owner, who has to stand behind all of it.
    pub fn all(self) -> Conflicts {
        let mut all = Conflicts::new();
        if self.cells.is_empty() {
            return all;
        }
        for cell in self.cells {
            all.extend(cell.reads);
            all.extend(cell.writes);
        }
        keep_last(&mut all);
        all
    }

    /// The uses of memory by its last owner, for the next.
    pub fn carried(size_bytes: u64, marks: Conflicts) -> Uses {
        let mut uses = Uses::default();
        if !marks.is_empty() {
            let mut cell = Cell::new(0..size_bytes);
            cell.writes = marks.into_iter().collect();
            uses.cells.push(cell);
        }
        uses
    }

    /// The first cell that ends behind `at`.
    #[inline]
    fn first_behind(&self, at: u64) -> usize {
        self.cells.partition_point(|cell| cell.end <= at)
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

impl Cell {
    fn new(bytes: Range<u64>) -> Cell {
        Cell {
            start: bytes.start,
            end: bytes.end,
            writes: SmallVec::new(),
            reads: SmallVec::new(),
        }
    }

    #[inline]
    fn note(&mut self, mode: Mode, mark: &Mark) {
        match mode {
            Mode::Write => {
                self.reads.clear();
                match &mut self.writes[..] {
                    [earlier] => *earlier = mark.clone(),
                    _ => {
                        self.writes.clear();
                        self.writes.push(mark.clone());
                    }
                }
            }
            Mode::Read => {
                let chain = mark.epoch().chain;
                match self.reads.iter_mut().find(|r| r.epoch().chain == chain) {
                    Some(earlier) => *earlier = mark.clone(),
                    None => self.reads.push(mark.clone()),
                }
            }
        }
    }
}

/// Keeps, of marks on one stream, the last, and drops those that another one stands behind.
pub(crate) fn keep_last(marks: &mut Conflicts) {
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
