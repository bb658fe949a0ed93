//! What rings leave for those that come after them: to page-lock memory, to allocate it and to start threads takes longer than many a
//! step.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Ring;
use super::pack::Copiers;
use super::slot::{Slot, Staging};
use crate::device::Device;
use crate::error::Result;
use crate::explicit::Stream;
use crate::tracker::{drop_elsewhere, outside_callbacks};

/// Memory, streams and threads of rings that have ended, for the next rings on the same device.
///
/// A ring made by [`Spares::ring`] takes what it needs from here, and leaves it here when it is closed or dropped; a batch that was
/// held longer leaves its slot when it ends. What was taken is the ring's own, so two rings never share anything. The memory of a
/// batch is written again only behind all its uses, as within one ring: its events come along with it.
///
/// At most [`MOST_BYTES`](Spares::MOST_BYTES) of device memory and as many of pinned memory are kept, in at most
/// [`MOST_SLOTS`](Spares::MOST_SLOTS) slots; what was left first goes first. If there is no memory for a batch of one of its rings, all
/// of it is given back.
#[derive(Clone)]
pub struct Spares {
    device: Device,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
pub(super) struct Kept {
    slots: VecDeque<Slot>,
    stagings: VecDeque<Staging>,
    workers: VecDeque<Worker>,
}

/// What a ring copies with: its stream, and the threads that pack.
pub(super) struct Worker {
    pub upload: Stream,
    pub copiers: Arc<Copiers>,
}

impl Spares {
    /// So many bytes of device memory are kept at most, and as many of pinned memory.
    pub const MOST_BYTES: u64 = 512 << 20;
    /// In so many slots and pieces of pinned memory at most, of four rings of two.
    pub const MOST_SLOTS: usize = 8;
    const MOST_WORKERS: usize = 4;

    /// For rings on this device. There is nothing yet.
    pub fn new(device: &Device) -> Spares {
        let (device, kept) = (device.clone(), Arc::default());
        Spares { device, kept }
    }

    /// A ring as by [`Ring::new`], of what is here.
    ///
    /// # Errors
    /// As [`Ring::new`].
    #[track_caller]
    pub fn ring(&self, depth: usize) -> Result<Ring> {
        let worker = self.kept.lock().workers.pop_back();
        Ring::made(&self.device, depth, worker, Some(self.clone()))
    }

    /// How many bytes of device memory and of pinned memory are kept.
    pub fn bytes(&self) -> (u64, u64) {
        let kept = self.kept.lock();
        let slots = kept.slots.iter().map(Slot::size_bytes);
        (
            slots.sum(),
            kept.stagings.iter().map(Staging::size_bytes).sum(),
        )
    }

    /// Gives it all back.
    ///
    /// # Ordering
    /// Holds up the host until the uses of the memory are complete. In a function on the host, which may not wait for the device,
    /// the memory goes on another thread.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        outside_callbacks(move || drop(kept));
    }

    /// The smallest slot with room for so many bytes.
    pub(super) fn slot(&self, bytes: u64) -> Option<Slot> {
        let slots = &mut self.kept.lock().slots;
        smallest(slots, bytes..=u64::MAX, Slot::size_bytes)
    }

    /// The smallest pinned memory with room for so many bytes, and no more than `most_bytes`.
    pub(super) fn staging(&self, bytes: u64, most_bytes: u64) -> Option<Staging> {
        let stagings = &mut self.kept.lock().stagings;
        smallest(stagings, bytes..=most_bytes, Staging::size_bytes)
    }

    /// Keeps what fits. What does not goes on another thread, since memory waits for its uses.
    pub(super) fn keep(&self, left: Kept) {
        let mut over = Kept::default();
        let mut kept = self.kept.lock();
        let slots = left.slots.into_iter();
        kept.slots
            .extend(slots.filter(|slot| slot.size_bytes() > 0));
        while kept.slots.len() > Self::MOST_SLOTS
            || kept.slots.iter().map(Slot::size_bytes).sum::<u64>() > Self::MOST_BYTES
        {
            over.slots.extend(kept.slots.pop_front());
        }
        let stagings = left.stagings.into_iter();
        kept.stagings
            .extend(stagings.filter(|staging| staging.size_bytes() > 0));
        while kept.stagings.len() > Self::MOST_SLOTS
            || kept.stagings.iter().map(Staging::size_bytes).sum::<u64>() > Self::MOST_BYTES
        {
            over.stagings.extend(kept.stagings.pop_front());
        }
        kept.workers.extend(left.workers);
        while kept.workers.len() > Self::MOST_WORKERS {
            over.workers.extend(kept.workers.pop_front());
        }
        drop(kept);
        if !over.is_empty() {
            drop_elsewhere(Box::new(over));
        }
    }
}

impl Kept {
    pub(super) fn of(slots: Vec<Slot>, stagings: Vec<Staging>, worker: Option<Worker>) -> Kept {
        Kept {
            slots: slots.into(),
            stagings: stagings.into(),
            workers: worker.into_iter().collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.stagings.is_empty() && self.workers.is_empty()
    }
}

fn smallest<T>(
    from: &mut VecDeque<T>,
    bytes: std::ops::RangeInclusive<u64>,
    size_bytes: impl Fn(&T) -> u64,
) -> Option<T> {
    let sizes = from.iter().map(size_bytes).enumerate();
    let fits = sizes.filter(|(_, has)| bytes.contains(has));
    let (at, _) = fits.min_by_key(|&(_, has)| has)?;
    from.remove(at)
}
