//! The table of the address space: all pieces, free or allocated, in address order.
//!
//! Every byte that was added belongs to exactly one record. Records are linked to their neighbours. A *hole* is a maximal
//! run of neighbouring free records; its first and its last record refer to each other, so that a freed piece joins both
//! its neighbours in constant time. Holes are sorted by size, then address.

mod segments;

use std::collections::{BTreeMap, BTreeSet};

use super::{On, Piece, State, Uses};
use crate::backend::Address;
use crate::op::StreamId;

pub(super) use segments::Idle;

/// No record.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Table<U> {
    /// Whether adjacent segments join.
    joins: bool,
    records: Vec<Record<U>>,
    /// Unused records, to be reused.
    spare: Vec<u32>,
    /// The holes, sorted by size, then address; the third number is the first record.
    holes: BTreeSet<(u64, u64, u32)>,
    /// The segments from the driver: size by address.
    segments: BTreeMap<u64, u64>,
    /// The records without a neighbour before them, by their start.
    firsts: BTreeMap<u64, u32>,
    /// The records without a neighbour after them, by their end.
    lasts: BTreeMap<u64, u32>,
    /// The number of the current search; cached answers are valid for one search.
    turn: u64,
}

#[derive(Debug)]
struct Record<U> {
    address: u64,
    bytes: u64,
    before: u32,
    behind: u32,
    /// For a record at the end of a hole: the one at the hole's other end. For one on a stack of
    /// [`super::recent`]: the one below it.
    other: u32,
    tenancy: Tenancy,
    on: On,
    /// The search in which the record's state was last queried, and whether the record can be used without a wait.
    answer: (u64, bool),
    uses: U,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tenancy {
    /// Allocated.
    Held,
    /// Free, on a stack.
    Stacked,
    /// Free, in a hole.
    Free,
}

/// A run of records inside a hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    hole: u32,
    first: u32,
    last: u32,
}

/// Whether a search may use a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The record may not be used.
    No,
    /// The record may be part of a run.
    Part,
    /// The record may be part of a run, and a run needs at least one such record.
    Wanted,
}

impl<U: Uses> Table<U> {
    pub(super) fn new(joins: bool) -> Table<U> {
        Table {
            joins,
            records: Vec::new(),
            spare: Vec::new(),
            holes: BTreeSet::new(),
            segments: BTreeMap::new(),
            firsts: BTreeMap::new(),
            lasts: BTreeMap::new(),
            turn: 0,
        }
    }

    /// Frees a piece, which is on a stack from then on.
    #[inline]
    #[track_caller]
    pub(super) fn leave(&mut self, piece: &Piece, uses: U, on: On) {
        let record = self.records.get_mut(piece.record as usize);
        let record = record.filter(|r| r.address == piece.address.0 && r.tenancy == Tenancy::Held);
        let record = record.expect("a piece is freed in the cache that allocated it");
        record.tenancy = Tenancy::Stacked;
        record.on = on;
        record.uses = uses;
    }

    /// Allocates a record, and returns its uses.
    #[inline]
    pub(super) fn enter(&mut self, at: u32, home: Option<StreamId>) -> (Piece, U, On) {
        let record = &mut self.records[at as usize];
        record.tenancy = Tenancy::Held;
        let piece = Piece {
            address: Address(record.address),
            bytes: record.bytes,
            record: at,
            home: home.map_or(0, |stream| stream.0 + 1),
        };
        (piece, std::mem::take(&mut record.uses), record.on)
    }

    /// Moves a record from its stack into a hole.
    pub(super) fn settle(&mut self, at: u32) {
        let (before, behind) = (self.at(at).before, self.at(at).behind);
        let mut ends = (at, at);
        if self.is_free(before) {
            ends.0 = self.at(before).other;
            self.unlist(ends.0);
        }
        if self.is_free(behind) {
            ends.1 = self.at(behind).other;
            self.unlist(behind);
        }
        self.at_mut(at).tenancy = Tenancy::Free;
        self.list(ends.0, ends.1);
    }

    /// Invalidates cached answers, at the start of a search.
    pub(super) fn forget_answers(&mut self) {
        self.turn += 1;
    }

    /// Finds the smallest hole with a run of this stream's memory, which may be completed by memory whose uses are complete.
    pub(super) fn find_own(&mut self, bytes: u64, home: Option<StreamId>) -> Option<Run> {
        home?;
        self.find(bytes, |record| match record.on {
            On::NoStream => Fit::Part,
            on if is_own(on, home) => Fit::Wanted,
            _ => Fit::No,
        })
    }

    /// Finds the smallest hole with memory that can be used without a wait, if possible without calling `state`. Counts the
    /// bytes whose uses turn out to be complete.
    pub(super) fn find_over(
        &mut self,
        bytes: u64,
        home: Option<StreamId>,
        state: &mut impl FnMut(&U) -> State,
        over_bytes: &mut u64,
    ) -> Option<Run> {
        let known = self.find(bytes, |record| {
            let is_known = record.on == On::NoStream || is_own(record.on, home);
            if is_known { Fit::Wanted } else { Fit::No }
        });
        if known.is_some() {
            return known;
        }
        let turn = self.turn;
        self.find(bytes, |record| {
            if record.is_ready(home, turn, state, over_bytes) {
                Fit::Wanted
            } else {
                Fit::No
            }
        })
    }

    /// Finds the smallest hole that is large enough, regardless of its uses.
    pub(super) fn find_any(&mut self, bytes: u64) -> Option<Run> {
        self.find(bytes, |_| Fit::Wanted)
    }

    fn find(&mut self, bytes: u64, mut fit: impl FnMut(&mut Record<U>) -> Fit) -> Option<Run> {
        let Table { holes, records, .. } = self;
        let fitting = holes.range((bytes, 0, 0)..);
        fitting
            .filter_map(|&(_, _, hole)| find_in(records, hole, bytes, &mut fit))
            .next()
    }

    /// Returns all uses of a run.
    pub(super) fn uses(&self, run: Run) -> U {
        let mut uses = U::default();
        let mut at = run.first;
        loop {
            uses.merge(self.at(at).uses.clone());
            if at == run.last {
                return uses;
            }
            at = self.at(at).behind;
        }
    }

    /// Makes one record of exactly this size from the start of a run and removes it from its hole.
    pub(super) fn take(&mut self, run: Run, bytes: u64, over_bytes: &mut u64) -> u32 {
        let Run { hole, first, last } = run;
        let hole_last = self.at(hole).other;
        self.unlist(hole);
        let end = self.at(first).address + bytes;
        let rest = self.cut(last, end);
        let rest_last = if last == hole_last {
            rest
        } else {
            Some(hole_last)
        };
        while self.at(first).end() < end {
            self.absorb(first, over_bytes);
        }
        if first != hole {
            self.list(hole, self.at(first).before);
        }
        if let Some(rest_last) = rest_last {
            self.list(self.at(first).behind, rest_last);
        }
        first
    }

    /// Splits a record in two, if the address is inside it. The front part keeps its index; returns the index of the
    /// back part.
    fn cut(&mut self, at: u32, address: u64) -> Option<u32> {
        let record = self.at_mut(at);
        if address <= record.address || address >= record.end() {
            return None;
        }
        let back = Record {
            address,
            bytes: record.end() - address,
            before: at,
            behind: record.behind,
            other: NONE,
            tenancy: record.tenancy,
            on: record.on,
            answer: record.answer,
            uses: record.uses.clone(),
        };
        let behind = record.behind;
        record.bytes = address - record.address;
        let new = self.new_record(back);
        self.link(new, behind);
        self.at_mut(at).behind = new;
        Some(new)
    }

    /// Joins a free record with the next one, which is free as well.
    fn absorb(&mut self, at: u32, over_bytes: &mut u64) {
        let gone = self.at(at).behind;
        let other = self.at_mut(gone);
        let (bytes, on, behind) = (other.bytes, other.on, other.behind);
        let uses = std::mem::take(&mut other.uses);
        self.spare.push(gone);
        let record = self.at_mut(at);
        match (record.on, on) {
            (On::NoStream, On::NoStream) => {}
            (On::NoStream, _) => *over_bytes -= record.bytes,
            (_, On::NoStream) => *over_bytes -= bytes,
            _ => {}
        }
        record.on = if record.on == on { on } else { On::Several };
        record.bytes += bytes;
        record.uses.merge(uses);
        self.link(at, behind);
    }

    /// Links a record to the next one, or marks the end of a range if there is none.
    fn link(&mut self, at: u32, behind: u32) {
        self.at_mut(at).behind = behind;
        if behind == NONE {
            let end = self.at(at).end();
            self.lasts.insert(end, at);
        } else {
            self.at_mut(behind).before = at;
        }
    }

    /// Adds a hole, given by its ends.
    fn list(&mut self, first: u32, last: u32) {
        self.at_mut(first).other = last;
        self.at_mut(last).other = first;
        self.holes.insert(self.hole(first));
    }

    fn unlist(&mut self, first: u32) {
        self.holes.remove(&self.hole(first));
    }

    fn hole(&self, first: u32) -> (u64, u64, u32) {
        let address = self.at(first).address;
        let end = self.at(self.at(first).other).end();
        (end - address, address, first)
    }

    fn is_free(&self, at: u32) -> bool {
        at != NONE && self.at(at).tenancy == Tenancy::Free
    }

    fn new_record(&mut self, record: Record<U>) -> u32 {
        if let Some(at) = self.spare.pop() {
            self.records[at as usize] = record;
            return at;
        }
        self.records.push(record);
        u32::try_from(self.records.len() - 1).expect("fewer than four billion pieces")
    }

    fn at(&self, at: u32) -> &Record<U> {
        &self.records[at as usize]
    }

    fn at_mut(&mut self, at: u32) -> &mut Record<U> {
        &mut self.records[at as usize]
    }
}

/// The functions used by the stacks of freed pieces.
impl<U> Table<U> {
    #[inline]
    pub(super) fn on(&self, at: u32) -> On {
        self.records[at as usize].on
    }

    /// Returns the uses of one record.
    pub(super) fn uses_of(&self, at: u32) -> &U {
        &self.records[at as usize].uses
    }

    #[inline]
    pub(super) fn bytes(&self, at: u32) -> u64 {
        self.records[at as usize].bytes
    }

    /// Returns the record below this one on its stack.
    #[inline]
    pub(super) fn below(&self, at: u32) -> u32 {
        self.records[at as usize].other
    }

    /// Puts a record on top of another.
    #[inline]
    pub(super) fn put_on(&mut self, at: u32, below: u32) {
        self.records[at as usize].other = below;
    }
}

/// Finds the first run of at least this many bytes in a hole.
fn find_in<U>(
    records: &mut [Record<U>],
    hole: u32,
    bytes: u64,
    fit: &mut impl FnMut(&mut Record<U>) -> Fit,
) -> Option<Run> {
    let hole_last = records[hole as usize].other;
    let (mut first, mut total_bytes, mut wanted) = (hole, 0, 0);
    let mut at = hole;
    loop {
        let record = &mut records[at as usize];
        let behind = record.behind;
        match fit(record) {
            Fit::No => (first, total_bytes, wanted) = (behind, 0, 0),
            fits => {
                total_bytes += record.bytes;
                wanted += u32::from(fits == Fit::Wanted);
            }
        }
        // A run without a wanted record is extended.
        while total_bytes >= bytes {
            if wanted > 0 {
                let last = at;
                return Some(Run { hole, first, last });
            }
            let front = &records[first as usize];
            total_bytes -= front.bytes;
            first = front.behind;
        }
        if at == hole_last {
            return None;
        }
        at = behind;
    }
}

fn is_own(on: On, home: Option<StreamId>) -> bool {
    matches!((on, home), (On::Only(stream), Some(home)) if stream == home)
}

impl<U> Record<U> {
    fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Whether a record can be used without a wait. Calls `state` if needed, at most once in a search.
    fn is_ready(
        &mut self,
        home: Option<StreamId>,
        turn: u64,
        state: &mut impl FnMut(&U) -> State,
        over_bytes: &mut u64,
    ) -> bool {
        if self.on == On::NoStream || is_own(self.on, home) {
            return true;
        }
        if self.answer.0 != turn {
            let state = state(&self.uses);
            self.answer = (turn, state != State::Pending);
            if state == State::Over {
                self.note_over(over_bytes);
            }
        }
        self.answer.1
    }

    /// Whether all uses of a record are complete. Calls `state` if that is not known.
    fn is_complete(&mut self, state: &mut impl FnMut(&U) -> State, over_bytes: &mut u64) -> bool {
        if self.on != On::NoStream && state(&self.uses) == State::Over {
            self.note_over(over_bytes);
        }
        self.on == On::NoStream
    }

    fn note_over(&mut self, over_bytes: &mut u64) {
        self.on = On::NoStream;
        *over_bytes += self.bytes;
    }
}
