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

/// The last steps of all chains, by their index in the clocks.
#[derive(Debug, Default)]
pub(super) struct Trails {
    trails: Vec<Trail>,
}

#[derive(Debug)]
struct Trail {
    chain: Chain,
    /// By step, modulo what is kept.
    ops: Vec<OpId>,
    last: u32,
}

impl Trails {
    /// A chain took a step.
    #[inline]
    pub fn extend(&mut self, epoch: Epoch, chain: Chain, op: OpId) {
        let index = epoch.chain as usize;
        if self.trails.len() <= index {
            let empty = || Trail {
                chain,
                ops: Vec::new(),
                last: 0,
            };
            self.trails.resize_with(index + 1, empty);
        }
        let trail = &mut self.trails[index];
        if trail.ops.is_empty() {
            trail.ops = vec![op; KEPT];
        }
        (trail.chain, trail.last) = (chain, epoch.tick);
        trail.ops[epoch.tick as usize % KEPT] = op;
    }

    /// The chain of a step that was taken.
    pub fn chain(&self, epoch: Epoch) -> Chain {
        self.trails[epoch.chain as usize].chain
    }

    /// How much of `of` lies before the present end of `at`.
    pub fn reach(&self, clocks: &Clocks, of: Chain, at: Chain) -> Reach {
        let known = clocks.known(at, of);
        let mut taken = self.trails.iter().filter(|trail| !trail.ops.is_empty());
        let trail = taken.find(|trail| trail.chain == of);
        match trail {
            Some(trail) if known > 0 => {
                if ((trail.last - known) as usize) < KEPT {
                    Reach::UpTo(trail.ops[known as usize % KEPT])
                } else {
                    Reach::LongAgo
                }
            }
            _ => Reach::Nothing,
        }
    }
}
