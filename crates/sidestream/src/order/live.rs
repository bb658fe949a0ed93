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
//! A clock is shared and copied on write, so that to freeze it, which happens once an operation,
//! costs one count; only a stream that learns something pays for a copy.

use std::sync::Arc;

use super::Epoch;

/// What is known of all streams at some point: by chain, how many steps.
#[derive(Clone, Debug, Default)]
struct Known(Arc<Vec<u32>>);

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
#[derive(Clone, Debug)]
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
        let state = (thread.thread, thread.version);
        if self.fed_by != state {
            self.known.join(&thread.known);
            self.fed_by = state;
        }
        self.tick += 1;
        Epoch {
            chain: self.chain,
            tick: self.tick,
        }
    }

    /// A call was refused. It is a step of its own, in case the device has seen some of it, but the
    /// stream learns nothing from its thread: no call that happened says so.
    pub fn refused(&mut self) {
        self.tick += 1;
    }

    /// A call of `thread` makes the stream wait for a point of a stream (R6, R40). That is a step of
    /// its own, or one number would stand for two clocks.
    pub fn waits_for(&mut self, thread: &ThreadClock, point: &Point) {
        self.submitted(thread);
        if !self.knows(point.epoch) {
            self.known.join(&point.known);
            self.known.reach(point.epoch);
        }
    }

    /// A call of `thread` launches a graph whose last launch ended at `earlier`: without any wait it
    /// stands behind that one, wherever it ran (R49), and so does what the stream does next.
    pub fn launched(&mut self, thread: &ThreadClock, earlier: &Point) {
        if !self.knows(earlier.epoch) {
            self.known.join(&earlier.known);
            self.known.reach(earlier.epoch);
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
    pub fn point_into(&self, point: &mut Point) {
        point.epoch = Epoch {
            chain: self.chain,
            tick: self.tick,
        };
        if !Arc::ptr_eq(&point.known.0, &self.known.0) {
            point.known = self.known.clone();
        }
    }

    /// Whether a step lies before whatever the stream does next.
    #[inline]
    pub fn knows(&self, epoch: Epoch) -> bool {
        epoch.chain == self.chain || self.known.has(epoch)
    }

    /// Whether its numbers are nearly used up: then [`StreamClock::renew`] it. No call takes as many
    /// as are left by then.
    #[inline]
    pub fn is_worn(&self) -> bool {
        self.tick > u32::MAX - (1 << 20)
    }

    /// The stream goes on as another chain, which stands behind the one that it was.
    pub fn renew(&mut self, chain: u32) {
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
            self.known.join(&point.known);
            self.known.reach(point.epoch);
            self.version += 1;
        }
    }

    /// Whether the thread knows a step to be over.
    #[inline]
    pub fn knows(&self, epoch: Epoch) -> bool {
        self.known.has(epoch)
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

impl Known {
    #[inline]
    fn has(&self, epoch: Epoch) -> bool {
        let known = self.0.get(epoch.chain as usize);
        known.is_some_and(|&tick| tick >= epoch.tick)
    }

    fn reach(&mut self, epoch: Epoch) {
        let entry = super::grow(Arc::make_mut(&mut self.0), epoch.chain);
        *entry = (*entry).max(epoch.tick);
    }

    #[inline(never)]
    fn join(&mut self, other: &Known) {
        if Arc::ptr_eq(&self.0, &other.0) || other.0.is_empty() {
            return;
        }
        let mine = Arc::make_mut(&mut self.0);
        super::clocks::join(mine, &other.0);
    }
}
