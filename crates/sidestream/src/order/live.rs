//! The ordering rules for concurrent callers that hold one lock per stream.
//!
//! [`Order`](super::Order) and [`Clocks`](super::Clocks) take all calls in one sequence. A running program has several
//! threads that submit at the same time, without a common lock. This module has the rules for what a program of the safe
//! API can do, each as a function on the clocks involved: non-blocking streams outside captures, records, waits and the
//! host.
//!
//! The clock of a stream contains, for every stream, the number of its steps that are known to be ordered before
//! everything that the stream does next. The clock of a thread contains the number of steps known to be complete. Only
//! streams have entries: a thread does no work that others wait for, it only passes on what it knows (R3).
//!
//! A clock is stored once per operation, so that must be cheap. A clock of few streams, which is the usual case, is one
//! cache line that is copied. A clock of more streams is shared and copied on write: storing it increments a
//! reference count, and only a stream whose clock grows pays for a copy.

use std::sync::Arc;

use super::Epoch;

/// A clock at some point: by chain, the number of known steps.
#[derive(Clone, Debug)]
enum Known {
    /// The entries of the first chains; those of the others are zero.
    Few([u32; FEW]),
    Many(Arc<Vec<u32>>),
}

/// The number of entries that fill a cache line together with the tag.
pub const FEW: usize = 15;

/// The largest number of a step. It fits a signed number: baseline x86-64 (SSE2) compares only signed numbers four at a
/// time; for unsigned ones it must first flip the sign bits.
const MOST: u32 = i32::MAX as u32;

/// The clock of a stream, protected by the stream's lock.
#[derive(Clone, Debug)]
pub struct StreamClock {
    chain: u32,
    tick: u32,
    /// The entries of the other chains; the entry of the stream's own chain is not updated.
    known: Known,
    /// The thread whose clock was joined last, and the version of that clock.
    fed_by: (u32, u64),
}

/// The clock of a host thread, which owns it.
#[derive(Debug)]
pub struct ThreadClock {
    thread: u32,
    /// Incremented whenever the clock grows.
    version: u64,
    known: Known,
}

/// A point of a stream with the clock at that point: the content of a record (R5).
#[derive(Debug, Default)]
pub struct Point {
    epoch: Epoch,
    known: Known,
}

impl StreamClock {
    /// Returns the clock of a stream that has done nothing; `chain` belongs to this stream alone.
    pub fn new(chain: u32) -> StreamClock {
        StreamClock {
            chain,
            tick: 0,
            known: Known::default(),
            fed_by: (u32::MAX, 0),
        }
    }

    /// Adds a step that a call of `thread` enqueues in the stream: it is ordered after everything in the stream (R1) and
    /// after everything that the thread knows to be complete (R3).
    #[inline]
    pub fn submitted(&mut self, thread: &ThreadClock) -> Epoch {
        if !self.is_fed_by(thread) {
            self.known.join(&thread.known);
            self.fed_by = (thread.thread, thread.version);
        }
        self.tick += 1;
        Epoch {
            chain: self.chain,
            tick: self.tick,
        }
    }

    /// Whether a call of `thread` would only count a step, since the stream's clock already includes the thread's.
    #[inline]
    pub(crate) fn is_fed_by(&self, thread: &ThreadClock) -> bool {
        self.fed_by == (thread.thread, thread.version)
    }

    /// Adds a step for work that may have been enqueued without a successful call: by a call that was refused after the device
    /// received a part of it, or by other code. Nothing is ordered after that step without a wait for it, and the stream's
    /// clock does not grow otherwise.
    pub fn unseen(&mut self) {
        self.tick += 1;
    }

    /// Makes the stream wait for a point of a stream, by a call of `thread` (R6, R40). That is a separate step, since
    /// otherwise one number would have two clocks.
    pub(crate) fn waits_for(&mut self, thread: &ThreadClock, point: &Point) {
        self.submitted(thread);
        if !self.knows(point.epoch) {
            self.known.learn(point);
        }
    }

    /// Adds the launch of a graph whose last launch ended at `earlier`, by a call of `thread`: the launch, and
    /// everything that the stream does next, is ordered after the last launch without any wait, in whichever stream
    /// that ran (R49).
    pub fn launched(&mut self, thread: &ThreadClock, earlier: &Point) {
        if !self.knows(earlier.epoch) {
            self.known.learn(earlier);
        }
        self.submitted(thread);
    }

    /// Returns the current end of the stream, as a record would store it (R5).
    #[inline]
    pub fn point(&self) -> Point {
        Point {
            epoch: Epoch {
                chain: self.chain,
                tick: self.tick,
            },
            known: self.known.clone(),
        }
    }

    /// Like [`StreamClock::point`], but overwrites an existing point.
    #[inline]
    pub(crate) fn point_into(&self, point: &mut Point) {
        point.epoch = Epoch {
            chain: self.chain,
            tick: self.tick,
        };
        point.known.copy_from(&self.known);
    }

    /// Whether a step is ordered before everything that the stream does next.
    #[inline]
    pub fn knows(&self, epoch: Epoch) -> bool {
        epoch.chain == self.chain || self.known.has(epoch)
    }

    /// Returns the chain of the stream.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    /// Whether its step numbers are nearly used up, so that [`StreamClock::renew`] must be called. At that point more
    /// numbers are left than any call uses.
    #[inline]
    pub(crate) fn is_worn(&self) -> bool {
        self.tick > MOST - (1 << 20)
    }

    /// Continues the stream as another chain, which is ordered after the old one.
    pub(crate) fn renew(&mut self, chain: u32) {
        let last = Epoch {
            chain: self.chain,
            tick: self.tick,
        };
        self.known.reach(last);
        (self.chain, self.tick) = (chain, 0);
    }
}

impl ThreadClock {
    /// Returns the clock of a thread that knows nothing. Threads must have different numbers.
    pub fn new(thread: u32) -> ThreadClock {
        ThreadClock {
            thread,
            version: 0,
            known: Known::default(),
        }
    }

    /// Notes that the thread has waited for a point, or that a query has reported it complete (R9, R10).
    pub fn saw(&mut self, point: &Point) {
        if !self.knows(point.epoch) {
            self.known.learn(point);
            self.version += 1;
        }
    }

    /// Whether the thread knows a step to be complete.
    #[inline]
    pub fn knows(&self, epoch: Epoch) -> bool {
        self.known.has(epoch)
    }
}

impl Clone for Point {
    #[inline]
    fn clone(&self) -> Point {
        Point {
            epoch: self.epoch,
            known: self.known.clone(),
        }
    }

    #[inline]
    fn clone_from(&mut self, other: &Point) {
        self.epoch = other.epoch;
        self.known.copy_from(&other.known);
    }
}

impl Point {
    /// Returns the step of the point.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a step is that of this point or ordered before it, so that a wait for this point includes the step.
    #[inline]
    pub fn covers(&self, epoch: Epoch) -> bool {
        let own = self.epoch.chain == epoch.chain && self.epoch.tick >= epoch.tick;
        own || self.known.has(epoch)
    }
}

impl Default for Known {
    fn default() -> Known {
        Known::Few([0; FEW])
    }
}

impl Known {
    #[inline]
    fn has(&self, epoch: Epoch) -> bool {
        self.all()
            .get(epoch.chain as usize)
            .is_some_and(|&tick| tick >= epoch.tick)
    }

    #[inline]
    fn copy_from(&mut self, other: &Known) {
        match (self, other) {
            (Known::Few(mine), Known::Few(theirs)) => *mine = *theirs,
            (Known::Many(mine), Known::Many(theirs)) if Arc::ptr_eq(mine, theirs) => {}
            (mine, theirs) => *mine = theirs.clone(),
        }
    }

    #[inline]
    fn all(&self) -> &[u32] {
        match self {
            Known::Few(known) => known,
            Known::Many(known) => known,
        }
    }

    /// Joins a point and its clock.
    #[inline]
    fn learn(&mut self, point: &Point) {
        self.join(&point.known);
        self.reach(point.epoch);
    }

    #[inline]
    fn reach(&mut self, epoch: Epoch) {
        match self {
            Known::Few(known) if (epoch.chain as usize) < FEW => {
                let entry = &mut known[epoch.chain as usize];
                *entry = (*entry).max(epoch.tick);
            }
            _ => self.reach_among_many(epoch),
        }
    }

    #[inline]
    fn join(&mut self, other: &Known) {
        match (&mut *self, other) {
            (Known::Few(mine), Known::Few(theirs)) => {
                for (mine, theirs) in mine.iter_mut().zip(theirs) {
                    // Compared as signed numbers, which is valid since no entry exceeds `MOST`.
                    *mine = (*mine)
                        .cast_signed()
                        .max((*theirs).cast_signed())
                        .cast_unsigned();
                }
            }
            (Known::Many(mine), Known::Many(theirs)) if Arc::ptr_eq(mine, theirs) => {}
            _ => self.join_many(other),
        }
    }

    #[inline(never)]
    fn join_many(&mut self, other: &Known) {
        let (mine, theirs) = (self.all(), other.all());
        let news = |(chain, tick): (usize, &u32)| mine.get(chain).copied().unwrap_or(0) < *tick;
        // The clock is copied only if an entry grows.
        if theirs.iter().enumerate().any(news) {
            super::clocks::join(self.many(), theirs);
        }
    }

    #[inline(never)]
    fn reach_among_many(&mut self, epoch: Epoch) {
        let entry = super::grow(self.many(), epoch.chain);
        *entry = (*entry).max(epoch.tick);
    }

    /// Returns the entries as a vector, which can have any number of chains.
    #[inline(never)]
    fn many(&mut self) -> &mut Vec<u32> {
        if let Known::Few(known) = self {
            *self = Known::Many(Arc::new(known.to_vec()));
        }
        match self {
            Known::Many(known) => Arc::make_mut(known),
            Known::Few(_) => unreachable!("this clock has many chains"),
        }
    }
}
