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
    /// By index in the clocks.
    chains: Vec<Trail>,
}

/// The last steps of one chain.
#[derive(Debug, Default)]
struct Trail {
    /// None if only others have waited for it.
    chain: Option<Chain>,
    /// By step modulo what is kept, for as many as there were.
    ops: Vec<OpId>,
}

impl Trails {
    /// A chain took a step.
    #[inline]
    pub(super) fn extend(&mut self, epoch: Epoch, chain: Chain, op: OpId) {
        let index = epoch.chain as usize;
        if self.chains.len() <= index {
            self.chains.resize_with(index + 1, Trail::default);
        }
        let trail = &mut self.chains[index];
        trail.chain = Some(chain);
        match trail.ops.get_mut(place(epoch.tick)) {
            Some(kept) => *kept = op,
            None => trail.ops.push(op),
        }
    }

    /// The chain of a step that was taken.
    pub(super) fn chain(&self, epoch: Epoch) -> Chain {
        let trail = &self.chains[epoch.chain as usize];
        trail.chain.expect("a chain that took a step")
    }

    /// How much of `of` lies before the present end of `at`.
    pub(super) fn reach(&self, clocks: &Clocks, of: Chain, at: Chain) -> Reach {
        let known = clocks.known(at, of);
        let trail = clocks.index(of);
        let trail = trail.and_then(|index| self.chains.get(index as usize));
        match trail {
            Some(trail) if known > 0 => {
                let last = clocks.known(of, of);
                if ((last - known) as usize) < KEPT {
                    Reach::UpTo(trail.ops[place(known)])
                } else {
                    Reach::LongAgo
                }
            }
            _ => Reach::Nothing,
        }
    }
}

/// Steps are numbered from one.
fn place(tick: u32) -> usize {
    tick.wrapping_sub(1) as usize % KEPT
}
