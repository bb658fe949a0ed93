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

use super::{After, Chain, Force, Order, RecordId, Step};
use crate::op::DeviceId;

/// A step, as its chain and its number on it. Numbers start at one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
}

#[derive(Debug, Default)]
struct Clock {
    /// By chain: the last step known to come before. Missing entries are zero.
    known: Vec<u32>,
    /// Its own last step.
    tick: u32,
    /// The last own step at which an entry other than its own grew.
    learned: u32,
}

#[derive(Debug, Default)]
struct Frozen {
    known: Vec<u32>,
    chain: u32,
    tick: u32,
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
        set(&mut self.chains[chain as usize].known, chain, tick);
        if let Some(record) = step.freezes {
            self.freeze(record, chain, tick);
        }
        Epoch { chain, tick }
    }

    /// Whether the step `epoch` lies before everything that `chain` will do next.
    pub fn ordered(&self, epoch: Epoch, before: Chain) -> bool {
        match self.known_index(before) {
            Some(index) => get(&self.chains[index].known, epoch.chain) >= epoch.tick,
            None => false,
        }
    }

    /// The clock of the chain with this index: for each chain, how many of its steps lie before the
    /// last step of this one. Missing entries are zero.
    #[inline]
    pub fn known_to(&self, chain: u32) -> &[u32] {
        &self.chains[chain as usize].known
    }

    /// How many steps of chain `of` are known to lie before the present end of chain `at`.
    pub fn known(&self, at: Chain, of: Chain) -> u32 {
        match (self.known_index(at), self.known_index(of)) {
            (Some(at), Some(of)) => get(&self.chains[at].known, of as u32),
            _ => 0,
        }
    }

    #[inline(always)]
    fn join_chain(&mut self, chain: u32, other: u32) {
        if other == chain {
            return;
        }
        let pair = [chain as usize, other as usize];
        let [clock, theirs] = (self.chains.get_disjoint_mut(pair)).expect("two known chains");
        let mine = get(&clock.known, other);
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
        if frozen.chain != chain && get(&clock.known, frozen.chain) < frozen.tick {
            clock.learned = clock.tick;
            join(&mut clock.known, &frozen.known);
        }
    }

    #[inline(never)]
    fn join_streams(&mut self, chain: u32, device: DeviceId, blocking_only: bool, order: &Order) {
        for (stream, kind, at) in order.streams() {
            if at == device && (!blocking_only || kind.is_blocking()) {
                let known = self.streams.get(stream.0 as usize);
                if let Some(other) = known.and_then(|&index| index.checked_sub(1)) {
                    self.join_chain(chain, other);
                }
            }
        }
    }

    #[inline(never)]
    fn freeze(&mut self, record: RecordId, chain: u32, tick: u32) {
        let frozen = super::grow(&mut self.records, record.0);
        frozen.known.clone_from(&self.chains[chain as usize].known);
        (frozen.chain, frozen.tick) = (chain, tick);
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
    /// Joins the clock of another chain, of which it knows `mine` steps and not the last.
    #[inline(never)]
    fn learn(&mut self, other: u32, mine: u32, theirs: &Clock) {
        self.learned = self.tick;
        if mine >= theirs.learned {
            // Only the other's own steps are news.
            set(&mut self.known, other, theirs.tick);
        } else {
            join(&mut self.known, &theirs.known);
        }
    }
}

#[inline]
fn get(clock: &[u32], chain: u32) -> u32 {
    clock.get(chain as usize).copied().unwrap_or(0)
}

#[inline]
fn set(clock: &mut Vec<u32>, chain: u32, tick: u32) {
    *super::grow(clock, chain) = tick;
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
