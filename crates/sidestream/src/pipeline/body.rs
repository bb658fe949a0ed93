//! What the ring asks of its slots.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

use super::failed::Failed;
use super::source::Filled;
use crate::device::Device;
use crate::error::Result;
use crate::event::{Event, TimedEvent};

/// Slots, and how an item gets into one.
pub(super) trait Body {
    /// Pinned memory that the source fills.
    type Input: Send + 'static;
    /// Pinned memory that the consumer gets.
    type Output: Send + 'static;
    /// Both, while the device uses them.
    type Held;

    fn device(&self) -> &Device;
    fn rows(&self) -> usize;
    /// The names of what an item goes through, with the copies.
    fn stages(&self) -> Vec<String>;
    /// One slot more, and memory to fill for it.
    fn add_slot(&mut self) -> Result<Self::Input>;
    /// Memory to fill while all slots are in use, if the slots can take any.
    fn more_input(&mut self) -> Result<Option<Self::Input>>;
    /// Memory for the results of the next item in this slot; none if the consumer still has it.
    fn output(&mut self, slot: usize, home: &Home<Self::Output>) -> Result<Option<Self::Output>>;
    fn submit(
        &mut self,
        slot: usize,
        item: Filled<Self::Input>,
        output: Self::Output,
        is_timed: bool,
    ) -> Result<Submitted<Self::Held>, Failed>;
    /// What comes back once the event is over.
    fn finish(&mut self, slot: usize, held: Self::Held) -> Result<(Self::Input, Self::Output)>;
}

/// An item on the device.
pub(super) struct Submitted<H> {
    /// When it is over.
    pub event: Event,
    pub held: H,
    /// If it is timed: its start, and the end of each stage.
    pub times: Vec<TimedEvent>,
}

/// Where outputs go when the consumer is done with them.
pub(super) struct Home<O> {
    spare: Arc<Mutex<Vec<(usize, O)>>>,
}

impl<O> Clone for Home<O> {
    fn clone(&self) -> Self {
        let spare = Arc::clone(&self.spare);
        Home { spare }
    }
}

impl<O> Default for Home<O> {
    fn default() -> Self {
        let spare = Arc::default();
        Home { spare }
    }
}

impl<O> Home<O> {
    pub(super) fn any(&self) -> Option<O> {
        self.spare.lock().pop().map(|(_, output)| output)
    }

    /// The output of this slot alone.
    pub(super) fn of(&self, slot: usize) -> Option<O> {
        let mut spare = self.spare.lock();
        let at = spare.iter().position(|(of, _)| *of == slot)?;
        Some(spare.swap_remove(at).1)
    }

    pub(super) fn put(&self, slot: usize, output: O) {
        self.spare.lock().push((slot, output));
    }
}

/// A finished item. It dereferences to its output: a [`Pinned`](crate::buffer::Pinned), or a tuple
/// of them.
///
/// Dropped, it gives the output back to the pipeline for a later item. It may be kept, and sent to
/// other threads: the pipeline takes new memory for the next one then.
pub struct Item<O> {
    index: u64,
    rows: usize,
    slot: usize,
    output: Option<O>,
    home: Home<O>,
}

impl<O> Item<O> {
    pub(super) fn new(index: u64, rows: usize, slot: usize, output: O, home: Home<O>) -> Item<O> {
        Item {
            index,
            rows,
            slot,
            output: Some(output),
            home,
        }
    }

    /// Its number, from zero.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many rows it has; what lies behind them in its output means nothing.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

const THERE: &str = "an item has its output until it is dropped";

impl<O> Deref for Item<O> {
    type Target = O;

    fn deref(&self) -> &O {
        self.output.as_ref().expect(THERE)
    }
}

impl<O> DerefMut for Item<O> {
    fn deref_mut(&mut self) -> &mut O {
        self.output.as_mut().expect(THERE)
    }
}

impl<O> Drop for Item<O> {
    fn drop(&mut self) {
        if let Some(output) = self.output.take() {
            self.home.put(self.slot, output);
        }
    }
}

impl<O: std::fmt::Debug> std::fmt::Debug for Item<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Item({}, {} rows)", self.index, self.rows)
    }
}
