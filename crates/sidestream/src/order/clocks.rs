//! Vector clocks over the edges of the rule book: decide whether one step is ordered before another.
//!
//! Every chain has a clock: for each chain, the number of its steps that are known to be ordered before. A step is an
//! [`Epoch`] (its chain and its number there), and it is ordered before the current end of another chain exactly if that
//! chain's clock has reached it. Vector clocks are due to Mattern and Fidge; comparing one epoch with one clock entry is
//! FastTrack's idea (Flanagan and Freund, PLDI 2009).
//!
//! # Why one comparison may skip a join
//! A join is skipped if the waiting clock already knows the last step at which the other chain's clock grew. That is
//! sound only because *every* step ticks its own chain, even one that only waits: a clock that knows tick `n` of a chain
//! has joined, directly or through others, the clock that the chain had at `n`. If waits did not tick, a chain would
//! have two different clocks under one number.
//!
//! # Thousands of chains
//! A clock lists the first [`NEAR`] chains, which is all of them in nearly every program. The others are in a tree that
//! clocks share with those they joined (see `far`), so that memory grows with the differences between clocks, and not
//! with the square of the number of chains.

use std::collections::HashMap;

use super::far::Far;
use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::DeviceId;

/// The number of chains that a clock stores in a vector.
const NEAR: u32 = 256;

/// A step: its chain and its number there. Numbers start at one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch {
    /// The index of the chain in these clocks.
    pub chain: u32,
    /// The number of the step on the chain.
    pub tick: u32,
}

/// The clocks of all chains and records.
#[derive(Debug)]
pub struct Clocks {
    weakest: Force,
    chains: Vec<Clock>,
    /// By thread: the index of its chain, plus one.
    threads: Vec<u32>,
    /// By stream: the index of its chain, plus one.
    streams: Vec<u32>,
    records: Vec<Frozen>,
    /// By chain, device, and whether only blocking streams were meant: the number of calls made when the chain last waited for
    /// all streams of the device.
    looked: HashMap<(u32, DeviceId, bool), u64>,
}

#[derive(Debug, Default)]
struct Clock {
    /// By chain: the last step that is known to be ordered before the end of this clock's chain. Missing entries are
    /// zero.
    known: Vec<u32>,
    /// The entries of the chains with an index of [`NEAR`] or more, except the clock's own chain.
    far: Far,
    /// The last step of the clock's own chain.
    tick: u32,
    /// The last step of the clock's own chain at which another entry grew.
    learned: u32,
}

#[derive(Debug, Default)]
struct Frozen {
    known: Vec<u32>,
    far: Far,
    /// The step that the record stores; `None` if it stores several (see [`Step::beside`]).
    step: Option<Epoch>,
}

/// The clock at the current end of a chain: see [`Clocks::known_to`].
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The entries of the first chains.
    pub near: Near<'a>,
    clock: &'a Clock,
    chain: u32,
}

/// The entries of the first chains of a [`Known`]: for steps of other chains, [`Near::has`] returns false. That is fast;
/// [`Known::has`] is exact.
#[derive(Clone, Copy, Debug)]
pub struct Near<'a>(&'a [u32]);

impl Near<'_> {
    /// Whether a step is ordered before everything that the chain does next; `false` may be wrong.
    #[inline(always)]
    pub fn has(&self, epoch: Epoch) -> bool {
        let known = self.0.get(epoch.chain as usize).copied();
        known.unwrap_or(0) >= epoch.tick
    }
}

impl Known<'_> {
    /// Whether a step is ordered before everything that the chain does next.
    pub fn has(&self, epoch: Epoch) -> bool {
        self.clock.get(self.chain, epoch.chain) >= epoch.tick
    }
}

impl Clocks {
    /// Returns clocks that follow the promised edges only, or the observed ones too.
    pub fn new(weakest: Force) -> Clocks {
        Clocks {
            weakest,
            chains: Vec::new(),
            threads: Vec::new(),
            streams: Vec::new(),
            records: Vec::new(),
            looked: HashMap::new(),
        }
    }

    /// Applies the next step and returns its epoch.
    ///
    /// Nearly every step has one edge, to the thread that submits it (R3), and learns nothing from it. That case is handled
    /// here; the others are in functions that are not inlined, since they would take the registers of this one.
    pub fn apply(&mut self, step: &Step, order: &Order) -> Epoch {
        let chain = self.index_of(step.chain);
        let clock = &mut self.chains[chain as usize];
        clock.tick += 1;
        let tick = clock.tick;
        for edge in &step.edges {
            if edge.force > self.weakest {
                continue;
            }
            match edge.after {
                After::Chain(other) => {
                    let other = self.index_of(other);
                    self.join_chain(chain, other);
                }
                After::Record(record) => self.join_record(chain, record),
                After::Blocking(device) => self.join_streams(chain, device, true, order),
                After::Device(device) => self.join_streams(chain, device, false, order),
            }
        }
        if chain < NEAR {
            *super::grow(&mut self.chains[chain as usize].known, chain) = tick;
        }
        if let Some(record) = step.freezes {
            self.freeze(record, Epoch { chain, tick }, step.beside);
        }
        Epoch { chain, tick }
    }

    /// Whether the step `epoch` is ordered before everything that `chain` will do next.
    pub fn ordered(&self, epoch: Epoch, before: Chain) -> bool {
        match self.known_index(before) {
            Some(at) => self.known_to(at as u32).has(epoch),
            None => false,
        }
    }

    /// Returns the clock at the end of the chain with this index.
    #[inline]
    pub fn known_to(&self, chain: u32) -> Known<'_> {
        let clock = &self.chains[chain as usize];
        Known {
            near: Near(&clock.known),
            clock,
            chain,
        }
    }

    /// Returns the number of steps of chain `of` that are known to be ordered before the current end of chain `at`.
    pub fn known(&self, at: Chain, of: Chain) -> u32 {
        match (self.known_index(at), self.known_index(of)) {
            (Some(at), Some(of)) => self.chains[at].get(at as u32, of as u32),
            _ => 0,
        }
    }

    /// Copies the clock at the current end of a chain, by index of chain. Returns false if there are more chains than can
    /// be listed.
    pub(crate) fn copy_known(&self, at: Chain, into: &mut Vec<u32>) -> bool {
        into.clear();
        if let Some(at) = self.known_index(at) {
            into.extend_from_slice(&self.chains[at].known);
        }
        self.chains.len() <= NEAR as usize
    }

    /// Returns the step stored last in a record; `None` if the record stores several ([`Step::beside`]).
    pub fn step_of(&self, record: RecordId) -> Option<Epoch> {
        self.records.get(record.0 as usize)?.step
    }

    /// Returns the index of a chain that has taken a step, or that another chain has waited for.
    pub fn index(&self, chain: Chain) -> Option<u32> {
        self.known_index(chain).map(|index| index as u32)
    }

    #[inline(always)]
    fn join_chain(&mut self, chain: u32, other: u32) {
        if other == chain {
            return;
        }
        let pair = [chain as usize, other as usize];
        let [clock, theirs] = (self.chains.get_disjoint_mut(pair)).expect("two known chains");
        let mine = match clock.known.get(other as usize) {
            Some(&near) => near,
            None => clock.get_far(other),
        };
        if mine < theirs.tick {
            clock.learn(other, mine, theirs);
        }
    }

    #[inline(never)]
    fn join_record(&mut self, chain: u32, record: RecordId) {
        let Some(frozen) = self.records.get(record.0 as usize) else {
            return;
        };
        let clock = &mut self.chains[chain as usize];
        let is_known = |step: Epoch| clock.get(chain, step.chain) >= step.tick;
        if !frozen.step.is_some_and(is_known) {
            clock.learned = clock.tick;
            join(&mut clock.known, &frozen.known);
            clock.join_far(&frozen.far, frozen.step);
        }
    }

    #[inline(never)]
    fn join_streams(&mut self, chain: u32, device: DeviceId, blocking_only: bool, order: &Order) {
        let since = if order.has_many_streams(device) {
            let looked = (chain, device, blocking_only);
            self.looked.insert(looked, order.calls_before())
        } else {
            None
        };
        for (stream, kind) in order.acted_since(device, since.unwrap_or(0)) {
            if !blocking_only || kind.is_blocking() {
                let known = self.streams.get(stream.0 as usize);
                if let Some(other) = known.and_then(|&index| index.checked_sub(1)) {
                    self.join_chain(chain, other);
                }
            }
        }
    }

    #[inline(never)]
    fn freeze(&mut self, record: RecordId, step: Epoch, beside: bool) {
        let frozen = super::grow(&mut self.records, record.0);
        let clock = &self.chains[step.chain as usize];
        if beside {
            frozen.meet(clock, step);
            return;
        }
        frozen.known.clone_from(&clock.known);
        frozen.far.set(&clock.far);
        frozen.step = Some(step);
    }

    #[inline(always)]
    fn index_of(&mut self, chain: Chain) -> u32 {
        let entry = match chain {
            Chain::Thread(t) => super::grow(&mut self.threads, t.0),
            Chain::Stream(s) => super::grow(&mut self.streams, s.0),
        };
        if *entry == 0 {
            self.chains.push(Clock::default());
            *entry = self.chains.len() as u32;
        }
        *entry - 1
    }

    fn known_index(&self, chain: Chain) -> Option<usize> {
        let entry = match chain {
            Chain::Thread(t) => self.threads.get(t.0 as usize),
            Chain::Stream(s) => self.streams.get(s.0 as usize),
        };
        entry.and_then(|&index| (index as usize).checked_sub(1))
    }
}

impl Clock {
    /// Returns the number of steps of a chain that this clock knows.
    #[inline]
    fn get(&self, own: u32, of: u32) -> u32 {
        match self.known.get(of as usize) {
            _ if of == own => self.tick,
            Some(&near) => near,
            None => self.get_far(of),
        }
    }

    #[inline(never)]
    fn get_far(&self, of: u32) -> u32 {
        if of < NEAR { 0 } else { self.far.get(of) }
    }

    /// Joins the clock of another chain, of which this clock knows `mine` steps, but not the last one.
    #[inline(never)]
    fn learn(&mut self, other: u32, mine: u32, theirs: &Clock) {
        self.learned = self.tick;
        let last = Epoch {
            chain: other,
            tick: theirs.tick,
        };
        if mine >= theirs.learned {
            // Only the other chain's own steps are new.
            self.reach(last);
        } else {
            join(&mut self.known, &theirs.known);
            self.join_far(&theirs.far, Some(last));
        }
    }

    /// Completes a join with a clock whose last step is `last`, with the entries beyond the first chains.
    #[inline]
    fn join_far(&mut self, theirs: &Far, last: Option<Epoch>) {
        self.far.join(theirs);
        if let Some(last) = last.filter(|last| last.chain >= NEAR) {
            self.far.reach(last.chain, last.tick);
        }
    }

    #[inline(always)]
    fn reach(&mut self, step: Epoch) {
        if step.chain < NEAR {
            *super::grow(&mut self.known, step.chain) = step.tick
        } else {
            self.far.reach(step.chain, step.tick)
        }
    }
}

impl Frozen {
    /// Keeps only the steps that `clock`, whose last step is `step`, knows too.
    #[cold]
    fn meet(&mut self, clock: &Clock, step: Epoch) {
        let reach_far = |far: &mut Far, step: Epoch| {
            if step.chain >= NEAR {
                far.reach(step.chain, step.tick);
            }
        };
        if let Some(step) = self.step.take() {
            reach_far(&mut self.far, step);
        }
        self.known.truncate(clock.known.len());
        let pairs = self.known.iter_mut().zip(&clock.known);
        pairs.for_each(|(mine, theirs)| *mine = *theirs.min(mine));
        let mut theirs = clock.far.clone();
        reach_far(&mut theirs, step);
        self.far.meet(&theirs);
    }
}

#[inline]
pub(super) fn join(mine: &mut Vec<u32>, theirs: &[u32]) {
    if mine.len() < theirs.len() {
        mine.resize(theirs.len(), 0);
    }
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = (*mine).max(*theirs);
    }
}
