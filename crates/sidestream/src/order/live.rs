//! The same rules for callers that hold one lock a stream.
//!
//! [`Order`](super::Order) and [`Clocks`](super::Clocks) take all calls in one sequence. A running
//! program has several threads that submit at once, and no lock that all of them take. This module
//! has the rules for what a safe program can do, each as a function on the clocks of those who take
//! part: non-blocking streams outside captures, records, waits and the host.
//!
//! The clock of a stream says, for every stream, how many of its steps are known to come before
//! whatever the stream does next. The clock of a thread says how many are known to be over. Only
//! streams have entries: a thread does no work that another has to wait for, it hands on what it
//! knows (R3).
//!
//! A clock is frozen once an operation, so that has to cost little. A clock of few streams, which is
//! the usual one, is a cache line that is copied. A clock of more is shared and copied on write: to
//! freeze it costs one count, and only a stream that learns something pays for a copy.

use std::sync::Arc;

use super::Epoch;

/// What is known of all streams at some point: by chain, how many steps.
#[derive(Clone, Debug)]
enum Known {
    /// Of the first chains; nothing is known of the others.
    Few([u32; FEW]),
    Many(Arc<Vec<u32>>),
}

/// With its tag this fills a cache line.
pub const FEW: usize = 15;

/// No number is greater. Processors of the first generation of 64 bits compare four signed numbers at once, and unsigned
/// ones one by one.
const MOST: u32 = i32::MAX as u32;

/// The clock of a stream. The lock of the stream guards it.
#[derive(Clone, Debug)]
pub struct StreamClock {
    chain: u32,
    tick: u32,
    /// Of the other chains; the entry of its own is not kept up.
    known: Known,
    /// Which state of which thread it has joined already.
    fed_by: (u32, u64),
}

/// The clock of a host thread. The thread owns it.
#[derive(Debug)]
pub struct ThreadClock {
    thread: u32,
    /// Grows whenever it learns something.
    version: u64,
    known: Known,
}

/// A point of a stream, with all that was known there: what a record keeps (R5).
#[derive(Debug, Default)]
pub struct Point {
    epoch: Epoch,
    known: Known,
}

impl StreamClock {
    /// The clock of a stream that has done nothing; `chain` is its own alone.
    pub fn new(chain: u32) -> StreamClock {
        StreamClock {
            chain,
            tick: 0,
            known: Known::default(),
            fed_by: (u32::MAX, 0),
        }
    }

    /// A call of `thread` puts something into the stream: it stands behind all that is there (R1)
    /// and behind all that the thread knows to be over (R3).
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

    /// Whether a call of `thread` would only count a step: the stream has learned before all that the
    /// thread knows.
    #[inline]
    pub(crate) fn is_fed_by(&self, thread: &ThreadClock) -> bool {
        self.fed_by == (thread.thread, thread.version)
    }

    /// The stream may have been given something of which no call says so: by one that was refused, in
    /// case the device has seen some of it, or by other code. That is a step of its own, which nobody can
    /// know before he waits for it, but the stream learns nothing by it.
    pub fn unseen(&mut self) {
        self.tick += 1;
    }

    /// A call of `thread` makes the stream wait for a point of a stream (R6, R40). That is a step of
    /// its own, or one number would stand for two clocks.
    pub(crate) fn waits_for(&mut self, thread: &ThreadClock, point: &Point) {
        self.submitted(thread);
        if !self.knows(point.epoch) {
            self.known.learn(point);
        }
    }

    /// A call of `thread` launches a graph whose last launch ended at `earlier`: without any wait it
    /// stands behind that one, wherever it ran (R49), and so does what the stream does next.
    pub fn launched(&mut self, thread: &ThreadClock, earlier: &Point) {
        if !self.knows(earlier.epoch) {
            self.known.learn(earlier);
        }
        self.submitted(thread);
    }

    /// The end of the stream so far, as a record of it would keep it (R5).
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

    /// The same, in place of another point.
    #[inline]
    pub(crate) fn point_into(&self, point: &mut Point) {
        point.epoch = Epoch {
            chain: self.chain,
            tick: self.tick,
        };
        point.known.copy_from(&self.known);
    }

    /// Whether a step lies before whatever the stream does next.
    #[inline]
    pub fn knows(&self, epoch: Epoch) -> bool {
        epoch.chain == self.chain || self.known.has(epoch)
    }

    /// Which chain it counts on.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    /// Whether its numbers are nearly used up: then [`StreamClock::renew`] it. No call takes as many
    /// as are left by then.
    #[inline]
    pub(crate) fn is_worn(&self) -> bool {
        self.tick > MOST - (1 << 20)
    }

    /// The stream goes on as another chain, which stands behind the one that it was.
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
    /// The clock of a thread that knows nothing. No two threads have the same number.
    pub fn new(thread: u32) -> ThreadClock {
        ThreadClock {
            thread,
            version: 0,
            known: Known::default(),
        }
    }

    /// The thread has waited for a point, or was told that it is over (R9, R10).
    pub fn saw(&mut self, point: &Point) {
        if !self.knows(point.epoch) {
            self.known.learn(point);
            self.version += 1;
        }
    }

    /// Whether the thread knows a step to be over.
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
    /// The step that it is.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a step is this one or lies before it: whoever waits for this point has waited for it.
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

    /// Learns a point, and all that was known there.
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
                    // As signed numbers, which they are as well.
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
        // A copy is made only for news.
        if theirs.iter().enumerate().any(news) {
            super::clocks::join(self.many(), theirs);
        }
    }

    #[inline(never)]
    fn reach_among_many(&mut self, epoch: Epoch) {
        let entry = super::grow(self.many(), epoch.chain);
        *entry = (*entry).max(epoch.tick);
    }

    /// The entries, of as many chains as there are.
    #[inline(never)]
    fn many(&mut self) -> &mut Vec<u32> {
        if let Known::Few(known) = self {
            *self = Known::Many(Arc::new(known.to_vec()));
        }
        match self {
            Known::Many(known) => Arc::make_mut(known),
            Known::Few(_) => unreachable!("there are many"),
        }
    }
}
