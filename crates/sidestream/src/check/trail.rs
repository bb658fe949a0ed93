//! Maps the steps of a chain back to operations.
//!
//! Clocks count the steps of one chain that are ordered before a point on another; a report names an operation
//! instead. Only the last steps of every chain are kept for that, so that memory does not grow with the
//! length of the program.

use super::report::Reach;
use crate::op::OpId;
use crate::order::{Chain, Clocks, Epoch};

/// The number of steps kept for each chain; a power of two.
const KEPT: usize = 1024;

/// The last steps of all chains.
#[derive(Debug, Default)]
pub(super) struct Trails {
    /// The trails, by the index of their chain in the clocks.
    chains: Vec<Trail>,
}

/// The last steps of one chain.
#[derive(Debug, Default)]
struct Trail {
    /// `None` if the chain took no step, and others only waited for it.
    chain: Option<Chain>,
    /// The operations by step modulo [`KEPT`].
    ops: Vec<OpId>,
}

impl Trails {
    /// Records a step of a chain.
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

    /// Returns the chain of a recorded step.
    pub(super) fn chain(&self, epoch: Epoch) -> Chain {
        let trail = &self.chains[epoch.chain as usize];
        trail.chain.expect("a chain that took a step")
    }

    /// Returns the last operation of `of` that is ordered before the current end of `at`.
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

/// Returns the index of a step in a trail; steps are numbered from one.
fn place(tick: u32) -> usize {
    tick.wrapping_sub(1) as usize % KEPT
}
