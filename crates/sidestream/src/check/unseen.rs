//! Waits for what no call shows, and the races that they may order.

use super::Race;
use crate::op::FlagId;
use crate::order::{Chain, Clocks, Epoch, Outside};

/// The number of doubtful pairs that are stored until the write that may order them is called.
const PAIRS: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Unseen {
    waits: Vec<Unknown>,
    /// The index of a race, and the steps of a pair that it counts.
    pairs: Vec<(usize, (Epoch, Epoch))>,
}

/// The first of the waits of a chain for one word, or for what has no word.
#[derive(Debug)]
struct Unknown {
    step: Epoch,
    word: Option<FlagId>,
    /// The step of the same chain that comes after the write that ended the waits, once that was called.
    ended: Option<Epoch>,
}

impl Unseen {
    /// Notes a wait; or removes the pairs that the end of waits has turned out to order.
    pub(super) fn step(
        &mut self,
        outside: Outside,
        epoch: Epoch,
        clocks: &Clocks,
        races: &mut [Race],
    ) {
        match outside {
            Outside::Nothing => {}
            Outside::Waits(word) => {
                let is_it = |wait: &&Unknown| wait.step.chain == epoch.chain && wait.word == word;
                if self
                    .waits
                    .iter()
                    .rev()
                    .find(is_it)
                    .is_none_or(|wait| wait.ended.is_some())
                {
                    self.waits.retain(|wait| !is_it(&wait));
                    let (step, ended) = (epoch, None);
                    self.waits.push(Unknown { step, word, ended });
                }
            }
            Outside::Ends(word) => {
                for wait in &mut self.waits {
                    if wait.step.chain != epoch.chain || wait.word != Some(word) {
                        continue;
                    }
                    wait.ended = Some(epoch);
                    let known = clocks.known_to(epoch.chain);
                    let after = |one: Epoch| one.chain == epoch.chain && one.tick >= wait.step.tick;
                    let before = |one: Epoch| one.chain != epoch.chain && known.has(one);
                    self.pairs.retain(|&(race, (first, second))| {
                        let ordered =
                            after(first) && before(second) || before(first) && after(second);
                        if ordered {
                            races[race].count -= 1;
                        }
                        !ordered
                    });
                }
            }
        }
    }

    /// Whether one of the chains has waited for what no call has shown, which may order the two.
    pub(super) fn may_order(&self, chains: (Chain, Chain), clocks: &Clocks) -> bool {
        let waited = |wait: &Unknown| {
            [chains.0, chains.1].into_iter().any(|at| {
                let knows = |step| clocks.ordered(step, at);
                knows(wait.step) && !wait.ended.is_some_and(knows)
            })
        };
        self.waits.iter().any(waited)
    }

    /// Notes a pair that a race counts.
    pub(super) fn note(&mut self, race: usize, steps: (Epoch, Epoch)) {
        if self.pairs.len() < PAIRS {
            self.pairs.push((race, steps));
        }
    }
}
