//! Pieces that were freed lately, in stacks by stream and size.
//!
//! A program that allocates and frees alike sizes in a loop never leaves here. The stacks are
//! linked through the records themselves and sit in a small table by hash, each kind in one of two
//! places. A kind that finds both taken goes to the unsorted, where nobody looks for it before all
//! are sorted into the table of the address space.
//!
//! Pieces that another stream than their home used stand in queues by size: whoever comes next asks
//! about the one that has waited longest, which is the one that is most likely over.

use super::On;
use super::table::{NONE, Table};
use crate::op::StreamId;

const STACKS: usize = 64;
const QUEUES: usize = 16;

#[derive(Debug)]
pub(super) struct Recent {
    stacks: Box<[Stack; STACKS]>,
    /// One bit for each stack that is not empty.
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
    /// A piece of exactly this size that nothing has to be asked about, the last freed first. For
    /// a stream that is one of its own; for the host, one that nobody uses.
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

    /// Puts a freed piece on its stack: what only its home stream used, or nobody. What another one
    /// used is queued up.
    #[inline]
    pub(super) fn push<U>(&mut self, record: u32, home: Option<StreamId>, table: &mut Table<U>) {
        let stream = match table.on(record) {
            On::Nobody => None,
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

    /// The piece of exactly this size that other streams used and that was freed first.
    #[inline]
    pub(super) fn longest_waiting(&self, bytes: u64) -> Option<u32> {
        let queue = self.queues.iter().find(|queue| queue.bytes == bytes)?;
        (queue.first != NONE).then_some(queue.first)
    }

    /// Takes out what [`Recent::longest_waiting`] gave.
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

    /// Takes out any piece.
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
    /// Where its stack may be.
    #[inline]
    fn places(self) -> [usize; 2] {
        let stream = self.stream.map_or(0, |stream| u64::from(stream.0) + 1);
        let mixed = (self.bytes ^ (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (mixed >> (64 - STACKS.trailing_zeros())) as usize;
        [place, place ^ 1]
    }
}
