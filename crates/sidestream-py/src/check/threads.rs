//! Host threads: which conflicting calls are made by two of them that nothing heard orders.
//!
//! The checker behind [`Core`](super::core::Core) takes all host threads for one, in the order in which their calls were seen, so that what it
//! calls a race is one whatever the threads do. Here the calls alone are looked at, as accesses of the threads that make them: two that
//! touch a common byte, one of them writing it, and that are ordered only because one happened to come first. The order of threads is what
//! they hand over to each other, told by who hears queues, locks and their like; `order` keeps it, as flags.

use std::collections::HashMap;

use sidestream::check::order::{Chain, Clocks, Epoch, Force, Order, Steps};
use sidestream::op::{
    Access, Accesses, BufferId, FlagId, Kind, Mode, Op, OpId, SiteId, StreamId, ThreadId,
};

/// So many accesses of one buffer are kept: the oldest goes first.
const MOST_KEPT: usize = 64;
/// So many pairs of places are kept.
const MOST_FOUND: usize = 1024;

/// The threads that were heard, once there is more than one.
pub struct Threads {
    order: Order,
    clocks: Clocks,
    steps: Steps,
    /// By the number that the recorder has for a thread.
    known: HashMap<u32, ThreadId>,
    count: u32,
    /// By what is handed over: the flag of each thread that did.
    handed: HashMap<u64, Vec<(ThreadId, FlagId)>>,
    flags: u32,
    spare: Vec<FlagId>,
    kept: HashMap<BufferId, Vec<Deed>>,
    /// Who has called backward, and waits for it.
    callers: Vec<ThreadId>,
    pub found: Vec<Unheard>,
    places: HashMap<(Place, Place), usize>,
    /// What comes now is told of a thread that did not do it.
    pub paused: bool,
}

/// An access that a thread called.
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

/// A line and what it calls: the stack and the operator, by their numbers.
pub type Place = (u32, u32);

/// Two accesses by two threads without an order that was heard.
#[derive(Clone, Debug)]
pub struct Unheard {
    pub first: Deed,
    pub second: Deed,
    pub bytes: Option<(u64, u64)>,
    pub count: u64,
}

impl Unheard {
    /// The kind of hazard, as the checker names it.
    pub fn kind(&self) -> &'static str {
        match (self.first.write, self.second.write) {
            (true, true) => "WAW",
            (true, false) => "RAW",
            _ => "WAR",
        }
    }
}

impl Threads {
    /// Nothing was handed over yet.
    pub fn new() -> Threads {
        Threads {
            order: Order::new(),
            clocks: Clocks::new(Force::Promised),
            steps: Steps::new(),
            known: HashMap::new(),
            count: 0,
            handed: HashMap::new(),
            flags: 0,
            spare: Vec::new(),
            kept: HashMap::new(),
            callers: Vec::new(),
            found: Vec::new(),
            places: HashMap::new(),
            paused: false,
        }
    }

    /// A thread of the program begins, or starts another one.
    pub fn begins(&mut self, thread: u32) {
        self.of(thread);
    }

    /// Who hands over or takes over in a thread. One of the engine's acts for who called backward.
    fn speaker(&mut self, thread: u32) -> ThreadId {
        match (self.known.get(&thread), self.callers.first()) {
            (Some(&known), _) => known,
            (None, Some(&caller)) => caller,
            (None, None) => self.of(thread),
        }
    }

    fn of(&mut self, thread: u32) -> ThreadId {
        let count = &mut self.count;
        *self.known.entry(thread).or_insert_with(|| {
            *count += 1;
            ThreadId(*count - 1)
        })
    }

    /// Takes a call of a thread's that is about threads alone.
    fn push(&mut self, thread: ThreadId, kind: Kind) -> Option<Epoch> {
        let op = Op {
            id: OpId(0),
            thread,
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        };
        // None of these is refused.
        self.order.push(&op, &mut self.steps).ok()?;
        let mut last = None;
        for step in &self.steps {
            last = Some(self.clocks.apply(step, &self.order));
        }
        self.steps.clear();
        last
    }

    /// What the thread has done so far comes before whoever takes this over from here on.
    pub fn hand_over(&mut self, thread: u32, what: u64) {
        let thread = self.speaker(thread);
        self.hand(thread, what);
    }

    fn hand(&mut self, thread: ThreadId, what: u64) {
        let by = self.handed.entry(what).or_default();
        let known = by.iter().find(|(who, _)| *who == thread);
        let flag = match known {
            // It has seen its own flag: raised again, that stands for all it has done.
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

    /// What the thread does from here on comes behind all that handed this over.
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

    /// Nobody takes this over any more.
    pub fn forget(&mut self, what: u64) {
        for (thread, flag) in self.handed.remove(&what).unwrap_or_default() {
            // A flag that is used again has to be down.
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

    /// Whose the calls of a thread are. Those of a thread that was never heard are nobody's.
    fn actor(&mut self, thread: u32) -> Option<ThreadId> {
        if let Some(&known) = self.known.get(&thread) {
            return Some(known);
        }
        let &first = self.callers.first()?;
        if self.callers.iter().any(|caller| *caller != first) {
            // Nobody knows for which of them: so it counts as ordered with all.
            for caller in self.callers.clone() {
                self.hand(caller, EVERY_CALLER);
            }
            for caller in self.callers.clone() {
                self.take(caller, EVERY_CALLER);
            }
        }
        Some(first)
    }

    /// A new tenancy has this number.
    pub fn handed_out(&mut self, buffer: BufferId) {
        self.kept.remove(&buffer);
    }

    /// An operation was called, with accesses. Gives what it is unordered with.
    pub fn called(
        &mut self,
        op: &Op,
        thread: u32,
        stream: Option<StreamId>,
        counts: impl Fn(&Access) -> bool,
    ) -> Vec<(Deed, Deed, BufferId)> {
        let mut pairs = Vec::new();
        if self.paused {
            return pairs;
        }
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
                // Who is unordered with what is covered is so with what covers it.
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

    /// Keeps a pair, each two places once: whichever comes first, and of whichever threads.
    pub fn keep(
        &mut self,
        (first, second): (Deed, Deed),
        (one, two): (Place, Place),
        bytes: Option<(u64, u64)>,
    ) {
        let places = (one.min(two), one.max(two));
        if let Some(&at) = self.places.get(&places) {
            self.found[at].count += 1;
        } else if self.found.len() < MOST_FOUND {
            self.places.insert(places, self.found.len());
            self.found.push(Unheard {
                first,
                second,
                bytes,
                count: 1,
            });
        }
    }
}

/// What nobody else hands over.
const EVERY_CALLER: u64 = u64::MAX;
