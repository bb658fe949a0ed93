//! Which operation a step of a chain belonged to.
//!
//! Clocks know how many steps of one chain lie before a point on another; a report should name an
//! operation. The last steps of every chain are kept for that, so that memory does not grow with
//! the length of the program.

use super::report::Reach;
use crate::op::OpId;
use crate::order::{Chain, Clocks, Epoch};

/// How many steps of a chain are kept; a power of two.
const KEPT: usize = 1024;

/// The last steps of all chains.
#[derive(Debug, Default)]
pub(super) struct Trails {
    /// By index in the clocks; none that only others have waited for.
    chains: Vec<Option<Chain>>,
    /// By index in the clocks and, within each, by step modulo what is kept.
    ops: Vec<OpId>,
}

impl Trails {
    /// A chain took a step.
    #[inline]
    pub fn extend(&mut self, epoch: Epoch, chain: Chain, op: OpId) {
        let index = epoch.chain as usize;
        if self.chains.len() <= index {
            self.grow(index + 1);
        }
        self.chains[index] = Some(chain);
        self.ops[place(index, epoch.tick)] = op;
    }

    #[cold]
    fn grow(&mut self, chains: usize) {
        self.chains.resize(chains, None);
        self.ops.resize(chains * KEPT, OpId(0));
    }

    /// The chain of a step that was taken.
    pub fn chain(&self, epoch: Epoch) -> Chain {
        self.chains[epoch.chain as usize].expect("a chain that took a step")
    }

    /// How much of `of` lies before the present end of `at`.
    pub fn reach(&self, clocks: &Clocks, of: Chain, at: Chain) -> Reach {
        let known = clocks.known(at, of);
        let index = self.chains.iter().position(|&chain| chain == Some(of));
        match index {
            Some(index) if known > 0 => {
                let last = clocks.known(of, of);
                if ((last - known) as usize) < KEPT {
                    Reach::UpTo(self.ops[place(index, known)])
                } else {
                    Reach::LongAgo
                }
            }
            _ => Reach::Nothing,
        }
    }
}

fn place(chain: usize, tick: u32) -> usize {
    chain * KEPT + tick as usize % KEPT
}
