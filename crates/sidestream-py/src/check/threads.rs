//! Host threads: finds conflicting calls by two threads without an observed order.
//!
//! The checker behind [`Core`](super::spine::Core) treats all host threads as one, in the order in which their calls
//! were observed, so that what it reports is a race for any timing of the threads. This module considers only the
//! calls, as accesses by the threads that make them: two that touch a common byte, at least one of them writing, and
//! that are ordered only because one happened to come first. Threads are ordered by what they hand over to each
//! other, as observed through queues, locks and similar objects; `order` keeps it, as flags.

use std::collections::HashMap;

use indexmap::IndexMap;
use sidestream::check::order::{Chain, Clocks, Epoch, Force, Order, Steps};
use sidestream::op::{
    Access, Accesses, BufferId, FlagId, Kind, Mode, Op, OpId, SiteId, StreamId, ThreadId,
};

/// The number of accesses that are kept for one buffer; the oldest is dropped first.
const MOST_KEPT: usize = 64;
/// The number of pairs of places that are kept.
const MOST_FOUND: usize = 1024;

/// The observed threads, once there is more than one.
pub struct Threads {
    order: Order,
    clocks: Clocks,
    steps: Steps,
    /// Threads by their number in the recorder.
    known: HashMap<u32, ThreadId>,
    /// For each handed-over object, the flag of each thread that handed it over.
    handed: HashMap<u64, Vec<(ThreadId, FlagId)>>,
    flags: u32,
    spare: Vec<FlagId>,
    kept: HashMap<BufferId, Vec<Deed>>,
    /// The threads that have called backward, and wait for it.
    callers: Vec<ThreadId>,
    /// The pairs without an observed order, by their places.
    pub found: IndexMap<(Place, Place), Unheard>,
}

/// An access in a call of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Deed {
    start: u64,
    end: u64,
    epoch: Epoch,
    thread: ThreadId,
    pub write: bool,
    pub op: OpId,
    pub site: SiteId,
    pub stream: Option<StreamId>,
}

/// A line and the operator that it calls: the numbers of the stack and of the operator's name.
pub type Place = (u32, u32);

/// Two accesses by two threads without an observed order.
#[derive(Clone, Debug)]
pub struct Unheard {
    pub first: Deed,
    pub second: Deed,
    pub bytes: Option<(u64, u64)>,
    pub count: u64,
}

impl Unheard {
    /// The kind of hazard, by the checker's code.
    pub fn kind(&self) -> &'static str {
        match (self.first.write, self.second.write) {
            (true, true) => "WAW",
            (true, false) => "RAW",
            _ => "WAR",
        }
    }
}

impl Threads {
    /// Makes an empty state, in which nothing was handed over.
    pub fn new() -> Threads {
        Threads {
            order: Order::new(),
            clocks: Clocks::new(Force::Promised),
            steps: Steps::new(),
            known: HashMap::new(),
            handed: HashMap::new(),
            flags: 0,
            spare: Vec::new(),
            kept: HashMap::new(),
            callers: Vec::new(),
            found: IndexMap::new(),
        }
    }

    /// A thread of the program begins, or starts another one.
    pub fn begins(&mut self, thread: u32) {
        self.of(thread);
    }

    /// The thread for which this one hands over or takes over. A thread of the engine acts for the caller of
    /// backward.
    fn speaker(&mut self, thread: u32) -> ThreadId {
        match (self.known.get(&thread), self.callers.first()) {
            (Some(&known), _) => known,
            (None, Some(&caller)) => caller,
            (None, None) => self.of(thread),
        }
    }

    fn of(&mut self, thread: u32) -> ThreadId {
        let next = ThreadId(self.known.len() as u32);
        *self.known.entry(thread).or_insert(next)
    }

    /// Applies an operation that only concerns the order of threads.
    fn push(&mut self, thread: ThreadId, kind: Kind) -> Option<Epoch> {
        let op = Op {
            id: OpId(0),
            thread,
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        };
        // None of these operations is refused.
        self.order.push(&op, &mut self.steps).ok()?;
        let mut last = None;
        for step in &self.steps {
            last = Some(self.clocks.apply(step, &self.order));
        }
        self.steps.clear();
        last
    }

    /// Everything that the thread has done so far is ordered before the threads that later take this object over.
    pub fn hand_over(&mut self, thread: u32, what: u64) {
        let thread = self.speaker(thread);
        self.hand(thread, what);
    }

    fn hand(&mut self, thread: ThreadId, what: u64) {
        let by = self.handed.entry(what).or_default();
        let known = by.iter().find(|(who, _)| *who == thread);
        let flag = match known {
            // The thread consumes its own flag first: set again, the flag covers all that the thread has done.
            Some(&(_, flag)) => {
                self.push(thread, Kind::WaitFlag { flag });
                flag
            }
            None => {
                let flag = self.spare.pop().unwrap_or_else(|| {
                    self.flags += 1;
                    FlagId(self.flags - 1)
                });
                by.push((thread, flag));
                flag
            }
        };
        self.push(thread, Kind::SetFlag { flag });
    }

    /// Everything that the thread does from here on is ordered after the threads that handed this object over.
    pub fn take_over(&mut self, thread: u32, what: u64) {
        let thread = self.speaker(thread);
        self.take(thread, what);
    }

    fn take(&mut self, thread: ThreadId, what: u64) {
        let all = self.handed.get(&what).cloned().unwrap_or_default();
        for (_, flag) in all.into_iter().filter(|(who, _)| *who != thread) {
            self.push(thread, Kind::WaitFlag { flag });
        }
    }

    /// Forgets an object that no thread will take over again, and makes its flags available again.
    pub fn forget(&mut self, what: u64) {
        for (thread, flag) in self.handed.remove(&what).unwrap_or_default() {
            // A flag must be clear before it is reused.
            self.push(thread, Kind::WaitFlag { flag });
            self.spare.push(flag);
        }
    }

    /// A thread calls backward: the engine's threads act for it until it returns.
    pub fn enter_backward(&mut self, thread: u32) {
        if let Some(caller) = self.actor(thread) {
            self.callers.push(caller);
        }
    }

    /// Backward returns to the thread.
    pub fn leave_backward(&mut self, thread: u32) {
        let caller = self.known.get(&thread).copied();
        let own = self.callers.iter().rposition(|of| Some(*of) == caller);
        match own {
            Some(at) => drop(self.callers.remove(at)),
            None => drop(self.callers.pop()),
        }
    }

    /// The thread to which a call is attributed; `None` for a thread that was never observed.
    fn actor(&mut self, thread: u32) -> Option<ThreadId> {
        if let Some(&known) = self.known.get(&thread) {
            return Some(known);
        }
        let &first = self.callers.first()?;
        if self.callers.iter().any(|caller| *caller != first) {
            // It is unknown which caller this thread acts for, so the call counts as ordered with all of them.
            for caller in self.callers.clone() {
                self.hand(caller, EVERY_CALLER);
            }
            for caller in self.callers.clone() {
                self.take(caller, EVERY_CALLER);
            }
        }
        Some(first)
    }

    /// Hears of an operation that a thread called. Returns the pairs with earlier accesses that are not ordered with
    /// it.
    pub fn hear(
        &mut self,
        op: &Op,
        thread: u32,
        counts: impl Fn(&Access) -> bool,
    ) -> Vec<(Deed, Deed, BufferId)> {
        let mut pairs = Vec::new();
        if let Kind::Alloc { buffer, .. } = op.kind {
            // A new tenancy uses this buffer ID.
            self.kept.remove(&buffer);
        }
        // The end of a storage's life is not an access by the thread in which it happens.
        if op.accesses.is_empty() || op.kind == Kind::FreePinned {
            return pairs;
        }
        let stream = op.kind.stream();
        let Some(thread) = self.actor(thread) else {
            return pairs;
        };
        let Some(epoch) = self.push(thread, Kind::HostAccess) else {
            return pairs;
        };
        for access in op.accesses.iter().filter(|access| counts(access)) {
            let now = Deed {
                start: access.start,
                end: access.end,
                epoch,
                thread,
                write: access.mode == Mode::Write,
                op: op.id,
                site: op.site,
                stream,
            };
            let kept = self.kept.entry(access.buffer).or_default();
            let clocks = &self.clocks;
            kept.retain(|before| {
                let meets = before.start < now.end && now.start < before.end;
                let conflicts = meets && (before.write || now.write);
                let ordered =
                    before.thread == thread || clocks.ordered(before.epoch, Chain::Thread(thread));
                if conflicts && !ordered {
                    pairs.push((*before, now, access.buffer));
                }
                // A later access that is unordered with a covered access is unordered with the covering one, too.
                let covers = now.start <= before.start && before.end <= now.end;
                let covered = covers && (now.write || !before.write) && ordered;
                !covered
            });
            if kept.len() == MOST_KEPT {
                kept.remove(0);
            }
            kept.push(now);
        }
        pairs
    }

    /// Keeps a pair, once for each two places, in either order and for any threads.
    pub fn keep(
        &mut self,
        (first, second): (Deed, Deed),
        (one, two): (Place, Place),
        bytes: Option<(u64, u64)>,
    ) {
        let places = (one.min(two), one.max(two));
        if let Some(known) = self.found.get_mut(&places) {
            known.count += 1;
        } else if self.found.len() < MOST_FOUND {
            let pair = Unheard {
                first,
                second,
                bytes,
                count: 1,
            };
            self.found.insert(places, pair);
        }
    }
}

/// The key under which all callers of backward are ordered; no other object has it.
const EVERY_CALLER: u64 = u64::MAX;
