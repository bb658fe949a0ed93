//! The locks of all blocks that a call touches, each taken once, in the order of their addresses.

use std::cmp::Ordering;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::super::block::{Block, BlockState, Touch};
use super::super::mark::Mark;
use super::super::uses::Uses;
use crate::op::Mode;

/// The locked state of every touched block.
pub(super) struct Held<'a> {
    /// Sorted by the block's address.
    states: SmallVec<[(*const Block, MutexGuard<'a, BlockState>); 4]>,
    /// Index into `states` of each touch, by the touch's number; empty for a few touches, where a search is faster.
    places: Vec<u32>,
}

/// Maximum number of touches for a linear search.
const FEW: usize = 8;

impl Default for Held<'_> {
    #[inline]
    fn default() -> Self {
        Held {
            states: SmallVec::new(),
            places: Vec::new(),
        }
    }
}

impl<'a> Held<'a> {
    /// Locks every touched block once. Almost every call touches one or two.
    #[inline]
    pub(super) fn lock(touches: &[Touch<'a>]) -> Held<'a> {
        let mut held = Held::default();
        match touches {
            [] => {}
            [only] => held.add(only.block),
            [a, b] => {
                let (a, b) = (a.block, b.block);
                match std::ptr::from_ref(a).cmp(&std::ptr::from_ref(b)) {
                    Ordering::Equal => held.add(a),
                    Ordering::Less => (held.add(a), held.add(b)).0,
                    Ordering::Greater => (held.add(b), held.add(a)).0,
                }
            }
            few if few.len() <= FEW => held.add_few(few),
            many => held.add_many(many),
        }
        held
    }

    #[inline]
    fn add(&mut self, block: &'a Block) {
        let held = (std::ptr::from_ref(block), block.state.lock());
        self.states.push(held);
    }

    fn add_few(&mut self, touches: &[Touch<'a>]) {
        let mut blocks: [&Block; FEW] = [touches[0].block; FEW];
        for (number, touch) in touches.iter().enumerate() {
            let mut at = number;
            while at > 0 && std::ptr::from_ref(blocks[at - 1]) > std::ptr::from_ref(touch.block) {
                blocks[at] = blocks[at - 1];
                at -= 1;
            }
            blocks[at] = touch.block;
        }
        for block in &blocks[..touches.len()] {
            self.add_once(block);
        }
    }

    #[inline(never)]
    fn add_many(&mut self, touches: &[Touch<'a>]) {
        let touched = (0u32..).zip(touches);
        let touched = touched.map(|(number, touch)| (touch.block, number));
        let mut touched: Vec<(&'a Block, u32)> = touched.collect();
        // A stable sort: blocks that were made together are mostly in order already.
        touched.sort_by_key(|&(block, _)| std::ptr::from_ref(block));
        self.states.reserve(touched.len());
        self.places.resize(touched.len(), 0);
        for (block, number) in touched {
            self.add_once(block);
            self.places[number as usize] = self.states.len() as u32 - 1;
        }
    }

    /// Locks the block unless the previous touch was of the same block: in the sorted list, touches of one block are
    /// adjacent.
    #[inline]
    fn add_once(&mut self, block: &'a Block) {
        let is_held = |&(last, _): &(*const Block, _)| std::ptr::eq(last, block);
        if !self.states.last().is_some_and(is_held) {
            self.add(block);
        }
    }

    /// Returns the index in `states` of the block of this touch.
    #[inline]
    fn place(&self, number: usize, block: &Block) -> usize {
        if self.states.len() <= 2 {
            return usize::from(!std::ptr::eq(self.states[0].0, block));
        }
        if let Some(&place) = self.places.get(number) {
            return place as usize;
        }
        let mut states = self.states.iter();
        let place = states.position(|&(held, _)| std::ptr::eq(held, block));
        place.expect("every touched block was locked")
    }

    /// Returns the uses of the block.
    #[inline]
    pub(super) fn uses(&self, number: usize, block: &Block) -> &Uses {
        &self.states[self.place(number, block)].1.uses
    }

    #[inline]
    pub(super) fn state(&mut self, number: usize, block: &Block) -> &mut BlockState {
        let place = self.place(number, block);
        &mut self.states[place].1
    }

    #[inline]
    pub(super) fn note(
        &mut self,
        number: usize,
        touch: &Touch<'_>,
        mark: Mark,
        is_in_the_stream: bool,
    ) {
        let uses = &mut self.state(number, touch.block).uses;
        let bytes = touch.start..touch.end;
        match touch.mode {
            // The write may not be ordered after uses that only its thread knows to be complete, or that an earlier
            // launch of its graph covers.
            Mode::Write if !is_in_the_stream => uses.note_beside(bytes, &mark),
            mode => uses.note(bytes, mode, mark),
        }
    }
}
