//! Vector clocks folded over the edges: is this ordered before that?
//!
//! Every chain has a clock: for each chain, how many of its steps are known to come before. A step
//! is an [`Epoch`] (its chain and its number there), and it lies before the present end of another
//! chain exactly if that chain's clock has reached it. Vector clocks are due to Mattern and Fidge;
//! comparing one epoch with one clock entry is FastTrack's idea (Flanagan and Freund, PLDI 2009).
//!
//! # Why one comparison may skip a join
//! A join is skipped if the waiting clock already knows the last step at which the other chain
//! learned something. That is sound only because *every* step ticks its own chain, also one that
//! does nothing but wait: whoever knows tick `n` of a chain has, directly or through others, joined
//! the clock that the chain had at `n`. A chain whose waits did not tick would hand out two
//! different clocks under one number.
//!
//! # Thousands of chains
//! A clock lists the first [`NEAR`] chains, which is all of them in nearly every program. Of the others
//! it has a tree that it shares with the clocks it learned from (see `far`), so that memory grows
//! with what clocks do not have in common, and not with the square of the chains.

use std::collections::HashMap;

use super::far::Far;
use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::DeviceId;

/// How many chains a clock lists one by one.
const NEAR: u32 = 256;

/// A step, as its chain and its number on it. Numbers start at one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch {
    /// The index of the chain in these clocks.
    pub chain: u32,
    /// The number of the step on it.
    pub tick: u32,
}

/// The clocks of all chains and records.
#[derive(Debug)]
pub struct Clocks {
    weakest: Force,
    chains: Vec<Clock>,
    /// By thread and by stream: the index of its chain, plus one.
    threads: Vec<u32>,
    streams: Vec<u32>,
    records: Vec<Frozen>,
    /// By chain and device, and whether it was only about blocking streams: how many calls had been
    /// made when the chain last waited for all streams there.
    looked: HashMap<(u32, DeviceId, bool), u64>,
}

#[derive(Debug, Default)]
struct Clock {
    /// By chain: the last step known to come before. Missing entries are zero.
    known: Vec<u32>,
    /// The same of the chains from [`NEAR`] on, but for its own.
    far: Far,
    /// Its own last step.
    tick: u32,
    /// The last own step at which an entry other than its own grew.
    learned: u32,
}

#[derive(Debug, Default)]
struct Frozen {
    known: Vec<u32>,
    far: Far,
    /// The step that it is; none if several points are kept beside each other.
    step: Option<Epoch>,
}

/// What is known at the present end of a chain: see [`Clocks::known_to`].
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// What is known of the first chains.
    pub near: Near<'a>,
    clock: &'a Clock,
    chain: u32,
}

/// The same, of the first chains only: of steps of the others it says that they are not known. That
/// is quick to ask, and [`Known::has`] says what is right.
#[derive(Clone, Copy, Debug)]
pub struct Near<'a>(&'a [u32]);

impl Near<'_> {
    /// Whether a step lies before everything that the chain does next, as far as this knows.
    #[inline(always)]
    pub fn has(&self, epoch: Epoch) -> bool {
        let known = self.0.get(epoch.chain as usize).copied();
        known.unwrap_or(0) >= epoch.tick
    }
}

impl Known<'_> {
    /// Whether a step lies before everything that the chain does next.
    pub fn has(&self, epoch: Epoch) -> bool {
        self.clock.get(self.chain, epoch.chain) >= epoch.tick
    }
}

impl Clocks {
    /// Clocks that follow the promised edges only, or the observed ones too.
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

    /// Takes the next step and says which epoch it is.
    ///
    /// Nearly every step has one edge, to the thread that submits it (R3), and learns nothing from
    /// it. That is decided here; what has to be done otherwise stands in functions that are kept
    /// out of this one, whose registers they would take.
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

    /// Whether the step `epoch` lies before everything that `chain` will do next.
    pub fn ordered(&self, epoch: Epoch, before: Chain) -> bool {
        match self.known_index(before) {
            Some(at) => self.known_to(at as u32).has(epoch),
            None => false,
        }
    }

    /// What is known at the end of the chain with this index.
    #[inline]
    pub fn known_to(&self, chain: u32) -> Known<'_> {
        let clock = &self.chains[chain as usize];
        Known {
            near: Near(&clock.known),
            clock,
            chain,
        }
    }

    /// How many steps of chain `of` are known to lie before the present end of chain `at`.
    pub fn known(&self, at: Chain, of: Chain) -> u32 {
        match (self.known_index(at), self.known_index(of)) {
            (Some(at), Some(of)) => self.chains[at].get(at as u32, of as u32),
            _ => 0,
        }
    }

    /// How many steps of each chain are known at the present end of one, by index. False where there are more chains than
    /// can be listed.
    pub(crate) fn copy_known(&self, at: Chain, into: &mut Vec<u32>) -> bool {
        into.clear();
        if let Some(at) = self.known_index(at) {
            into.extend_from_slice(&self.chains[at].known);
        }
        self.chains.len() <= NEAR as usize
    }

    /// The step that was frozen here last; none if several points are kept beside each other.
    pub fn step_of(&self, record: RecordId) -> Option<Epoch> {
        self.records.get(record.0 as usize)?.step
    }

    /// The index of a chain that has taken a step, or that somebody has waited for.
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
        let since = match order.has_many_streams(device) {
            true => {
                let looked = (chain, device, blocking_only);
                self.looked.insert(looked, order.calls_before())
            }
            false => None,
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
    /// How many steps of a chain are known to the one whose clock this is.
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
        match of < NEAR {
            true => 0,
            false => self.far.get(of),
        }
    }

    /// Joins the clock of another chain, of which it knows `mine` steps and not the last.
    #[inline(never)]
    fn learn(&mut self, other: u32, mine: u32, theirs: &Clock) {
        self.learned = self.tick;
        let last = Epoch {
            chain: other,
            tick: theirs.tick,
        };
        if mine >= theirs.learned {
            // Only the other's own steps are news.
            self.reach(last);
        } else {
            join(&mut self.known, &theirs.known);
            self.join_far(&theirs.far, Some(last));
        }
    }

    /// The rest of joining a clock whose last step is `last`: what its list of the first chains lacks.
    #[inline]
    fn join_far(&mut self, theirs: &Far, last: Option<Epoch>) {
        self.far.join(theirs);
        if let Some(last) = last.filter(|last| last.chain >= NEAR) {
            self.far.reach(last.chain, last.tick);
        }
    }

    #[inline(always)]
    fn reach(&mut self, step: Epoch) {
        match step.chain < NEAR {
            true => *super::grow(&mut self.known, step.chain) = step.tick,
            false => self.far.reach(step.chain, step.tick),
        }
    }
}

impl Frozen {
    /// Keeps what it has in common with a clock whose last step is `step`.
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
