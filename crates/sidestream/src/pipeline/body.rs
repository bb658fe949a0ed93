//! The interface between the ring of a pipeline and its slots.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

use super::failed::Failed;
use super::source::Filled;
use crate::device::Device;
use crate::error::Result;
use crate::event::{Event, TimedEvent};

/// The slots of a pipeline, and how an item is submitted to one.
pub(super) trait Body {
    /// Pinned memory that the source fills.
    type Input: Send + 'static;
    /// Pinned memory that the consumer receives.
    type Output: Send + 'static;
    /// The input and the output while the device uses them.
    type Held;

    fn device(&self) -> &Device;
    fn rows(&self) -> usize;
    /// Returns the names of the stages of an item, including the copies.
    fn stages(&self) -> Vec<String>;
    /// Adds a slot, and returns memory to fill for it.
    fn add_slot(&mut self) -> Result<Self::Input>;
    /// Returns memory to fill while all slots are in use, if the slots accept such memory.
    fn more_input(&mut self) -> Result<Option<Self::Input>>;
    /// Returns memory for the results of the next item in this slot; `None` if the consumer still has it.
    fn output(&mut self, slot: usize, home: &Home<Self::Output>) -> Result<Option<Self::Output>>;
    fn submit(
        &mut self,
        slot: usize,
        item: Filled<Self::Input>,
        output: Self::Output,
        is_timed: bool,
    ) -> Result<Submitted<Self::Held>, Failed>;
    /// Returns the input and the output once the event is complete.
    fn finish(&mut self, slot: usize, held: Self::Held) -> Result<(Self::Input, Self::Output)>;
}

/// An item on the device.
pub(super) struct Submitted<H> {
    /// The event that completes when the item is done.
    pub event: Event,
    pub held: H,
    /// The start, and the end of each stage; empty unless the item is timed.
    pub times: Vec<TimedEvent>,
}

/// The place to which outputs return when the consumer drops them.
pub(super) struct Home<O> {
    spare: Mutex<Vec<(usize, O)>>,
}

impl<O> Home<O> {
    pub(super) fn new() -> Arc<Home<O>> {
        let spare = Mutex::new(Vec::new());
        Arc::new(Home { spare })
    }

    pub(super) fn any(&self) -> Option<O> {
        self.spare.lock().pop().map(|(_, output)| output)
    }

    /// Takes the output that belongs to this slot.
    pub(super) fn of(&self, slot: usize) -> Option<O> {
        let mut spare = self.spare.lock();
        let at = spare.iter().position(|(of, _)| *of == slot)?;
        Some(spare.swap_remove(at).1)
    }

    pub(super) fn put(&self, slot: usize, output: O) {
        self.spare.lock().push((slot, output));
    }
}

/// A completed item. It dereferences to its output: a [`Pinned`](crate::buffer::Pinned), or a tuple of them.
///
/// Dropping it returns the output to the pipeline for a later item. It may be kept, and sent to other threads: the
/// pipeline then allocates new memory for the next item.
pub struct Item<O> {
    index: u64,
    rows: usize,
    slot: usize,
    output: Option<O>,
    home: Arc<Home<O>>,
}

impl<O> Item<O> {
    pub(super) fn new(
        index: u64,
        rows: usize,
        slot: usize,
        output: O,
        home: Arc<Home<O>>,
    ) -> Item<O> {
        Item {
            index,
            rows,
            slot,
            output: Some(output),
            home,
        }
    }

    /// Returns the number of the item, counted from zero.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the number of the item's rows; the rest of its output is unspecified.
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
