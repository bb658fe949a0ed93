//! Recently freed pieces, in stacks by stream and size.
//!
//! A program that allocates and frees equal sizes in a loop is served from here alone. The stacks are linked through the
//! records themselves and are kept in a small hash table with two possible entries for each kind. If both are taken, the
//! piece goes to an unsorted list, which is not searched; it is found once all pieces are moved to the table of the
//! address space.
//!
//! Pieces used by a stream other than their home are in queues by size: the next allocation examines the one freed first,
//! whose uses are most likely complete.

use super::On;
use super::table::{NONE, Table};
use crate::op::StreamId;

const STACKS: usize = 64;
const QUEUES: usize = 16;

#[derive(Debug)]
pub(super) struct Recent {
    stacks: Box<[Stack; STACKS]>,
    /// One bit for each non-empty stack.
    used: u64,
    queues: [Queue; QUEUES],
    unsorted: u32,
}

/// Pieces of one size that other streams used, in the order in which they were freed.
#[derive(Clone, Copy, Debug)]
struct Queue {
    bytes: u64,
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Stack {
    kind: Kind,
    top: u32,
}

/// The key of a stack: the only stream of the pieces' uses, and their size.
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
            queues: [Queue {
                bytes: 0,
                first: NONE,
                last: NONE,
            }; QUEUES],
            unsorted: NONE,
        }
    }
}

impl Recent {
    /// Takes a piece of exactly this size whose state is known, the last freed first: for a stream, a piece that only
    /// this stream used; for the host, a piece without uses.
    #[inline]
    pub(super) fn pop<U>(
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

    /// Adds a freed piece: to a stack if only its home stream or no stream used it; to a queue if another stream did.
    #[inline]
    pub(super) fn push<U>(&mut self, record: u32, home: Option<StreamId>, table: &mut Table<U>) {
        let stream = match table.on(record) {
            On::NoStream => None,
            On::Only(stream) if home == Some(stream) => Some(stream),
            On::Only(_) | On::Several => return self.queue_up(record, table),
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

    /// Returns the piece of exactly this size that other streams used and that was freed first.
    #[inline]
    pub(super) fn longest_waiting(&self, bytes: u64) -> Option<u32> {
        let queue = self.queues.iter().find(|queue| queue.bytes == bytes)?;
        (queue.first != NONE).then_some(queue.first)
    }

    /// Removes the piece that [`Recent::longest_waiting`] returned.
    pub(super) fn take_longest_waiting<U>(&mut self, bytes: u64, table: &Table<U>) {
        let queue = self.queues.iter_mut().find(|queue| queue.bytes == bytes);
        if let Some(queue) = queue.filter(|queue| queue.first != NONE) {
            queue.first = table.below(queue.first);
        }
    }

    fn queue_up<U>(&mut self, record: u32, table: &mut Table<U>) {
        let bytes = table.bytes(record);
        let known = self.queues.iter().position(|queue| queue.bytes == bytes);
        let free = || self.queues.iter().position(|queue| queue.first == NONE);
        let Some(at) = known.or_else(free) else {
            return self.push_unsorted(record, table);
        };
        let queue = &mut self.queues[at];
        queue.bytes = bytes;
        table.put_on(record, NONE);
        if queue.first == NONE {
            queue.first = record;
        } else {
            table.put_on(queue.last, record);
        }
        queue.last = record;
    }

    #[inline(never)]
    fn push_unsorted<U>(&mut self, record: u32, table: &mut Table<U>) {
        table.put_on(record, self.unsorted);
        self.unsorted = record;
    }

    /// Removes any piece.
    pub(super) fn drain<U>(&mut self, table: &Table<U>) -> Option<u32> {
        let waiting = self.queues.iter_mut().find(|queue| queue.first != NONE);
        let top = if self.unsorted != NONE {
            &mut self.unsorted
        } else if let Some(queue) = waiting {
            &mut queue.first
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
    /// Returns the two entries that may contain the stack of this kind.
    #[inline]
    fn places(self) -> [usize; 2] {
        let stream = self.stream.map_or(0, |stream| u64::from(stream.0) + 1);
        let mixed = (self.bytes ^ (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> (64 - STACKS.trailing_zeros())) as usize;
        [place, place ^ 1]
    }
}
