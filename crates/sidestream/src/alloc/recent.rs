//! Pieces that were freed lately, in stacks by stream and size.
//!
//! A program that allocates and frees alike sizes in a loop never leaves here. The stacks are
//! linked through the records themselves and sit in a small table by hash, each kind in one of two
//! places. A kind that finds both taken goes to the unsorted, where nobody looks for it before all
//! are sorted into the table of the address space.

use super::On;
use super::table::{NONE, Table};
use crate::op::StreamId;

const STACKS: usize = 64;

#[derive(Debug)]
pub(super) struct Recent {
    stacks: Box<[Stack; STACKS]>,
    /// One bit for each stack that is not empty.
    used: u64,
    unsorted: u32,
}

#[derive(Clone, Copy, Debug)]
struct Stack {
    kind: Kind,
    top: u32,
}

/// Which pieces lie in one stack: the only stream of their uses, and their size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    stream: Option<StreamId>,
    bytes: u64,
}

impl Default for Recent {
    fn default() -> Self {
        let kind = Kind {
            stream: None,
            bytes: 0,
        };
        Recent {
            stacks: Box::new([Stack { kind, top: NONE }; STACKS]),
            used: 0,
            unsorted: NONE,
        }
    }
}

impl Recent {
    /// A piece of exactly this size that nothing has to be asked about, the last freed first. For
    /// a stream that is one of its own; for the host, one that nobody uses.
    #[inline]
    pub fn pop<U>(
        &mut self,
        stream: Option<StreamId>,
        bytes: u64,
        table: &mut Table<U>,
    ) -> Option<u32> {
        let kind = Kind { stream, bytes };
        for place in kind.places() {
            let stack = &mut self.stacks[place];
            if stack.top != NONE && stack.kind == kind {
                let record = stack.top;
                stack.top = table.below(record);
                if stack.top == NONE {
                    self.used &= !(1 << place);
                }
                return Some(record);
            }
        }
        None
    }

    /// Puts a freed piece on its stack.
    #[inline]
    pub fn push<U>(&mut self, record: u32, table: &mut Table<U>) {
        let stream = match table.on(record) {
            On::Nobody => None,
            On::Only(stream) => Some(stream),
            On::Several => return self.push_unsorted(record, table),
        };
        let bytes = table.bytes(record);
        let kind = Kind { stream, bytes };
        let [one, other] = kind.places();
        let is_ours = |place: usize| {
            let stack = &self.stacks[place];
            stack.top != NONE && stack.kind == kind
        };
        let place = if is_ours(one) || (self.stacks[one].top == NONE && !is_ours(other)) {
            one
        } else if is_ours(other) || self.stacks[other].top == NONE {
            other
        } else {
            return self.push_unsorted(record, table);
        };
        let stack = &mut self.stacks[place];
        stack.kind = kind;
        table.put_on(record, stack.top);
        stack.top = record;
        self.used |= 1 << place;
    }

    #[inline(never)]
    fn push_unsorted<U>(&mut self, record: u32, table: &mut Table<U>) {
        table.put_on(record, self.unsorted);
        self.unsorted = record;
    }

    /// Takes out any piece.
    pub fn drain<U>(&mut self, table: &Table<U>) -> Option<u32> {
        let top = if self.unsorted != NONE {
            &mut self.unsorted
        } else if self.used != 0 {
            &mut self.stacks[self.used.trailing_zeros() as usize].top
        } else {
            return None;
        };
        let record = *top;
        *top = table.below(record);
        if self.used != 0 && self.stacks[self.used.trailing_zeros() as usize].top == NONE {
            self.used &= self.used - 1;
        }
        Some(record)
    }
}

impl Kind {
    /// Where its stack may be.
    #[inline]
    fn places(self) -> [usize; 2] {
        let stream = self.stream.map_or(0, |stream| u64::from(stream.0) + 1);
        let mixed = (self.bytes ^ (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> (64 - STACKS.trailing_zeros())) as usize;
        [place, place ^ 1]
    }
}
