//! Memory, streams and threads that rings pass on to later rings: page-locking memory, allocating it and starting
//! threads takes longer than many training steps.

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
/// A ring made by [`Spares::ring`] takes what it needs from here, and returns it when it is closed or dropped; a lease that
/// outlives its ring returns its slot when it ends. While a ring has them, no other ring uses them. As within one ring, the
/// memory of a batch is written again only after all its uses: its events stay with it.
///
/// At most [`MOST_BYTES`](Spares::MOST_BYTES) of device memory and as many of pinned memory are kept, in at most
/// [`MOST_SLOTS`](Spares::MOST_SLOTS) slots; the oldest are freed first. If an allocation for one of these rings fails,
/// all kept memory is freed.
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

/// The upload stream and the packing threads of a ring.
pub(super) struct Worker {
    pub upload: Stream,
    pub copiers: Arc<Copiers>,
}

impl Spares {
    /// The limit on the bytes of device memory kept, and on those of pinned memory.
    pub const MOST_BYTES: u64 = 512 << 20;
    /// The limit on the slots and on the pieces of pinned memory kept: those of four rings with two slots each.
    pub const MOST_SLOTS: usize = 8;
    const MOST_WORKERS: usize = 4;

    /// Returns an empty store for rings on this device.
    pub fn new(device: &Device) -> Spares {
        let (device, kept) = (device.clone(), Arc::default());
        Spares { device, kept }
    }

    /// Like [`Ring::new`], but the ring takes its memory, stream and threads from here.
    ///
    /// # Errors
    /// Like [`Ring::new`].
    #[track_caller]
    pub fn ring(&self, depth: usize) -> Result<Ring> {
        let worker = self.kept.lock().workers.pop_back();
        Ring::made(&self.device, depth, worker, Some(self.clone()))
    }

    /// Returns the bytes of device memory and of pinned memory that are kept.
    pub fn bytes(&self) -> (u64, u64) {
        let kept = self.kept.lock();
        let slots = kept.slots.iter().map(Slot::size_bytes);
        (
            slots.sum(),
            kept.stagings.iter().map(Staging::size_bytes).sum(),
        )
    }

    /// Frees everything.
    ///
    /// # Ordering
    /// Blocks the host until the uses of the memory are complete. In a host function, which may not wait for the device, the
    /// memory is freed on another thread instead.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        outside_callbacks(move || drop(kept));
    }

    /// Takes the smallest slot of at least this size.
    pub(super) fn slot(&self, bytes: u64) -> Option<Slot> {
        let slots = &mut self.kept.lock().slots;
        smallest(slots, bytes..=u64::MAX, Slot::size_bytes)
    }

    /// Takes the smallest pinned memory of at least `bytes` and at most `most_bytes`.
    pub(super) fn staging(&self, bytes: u64, most_bytes: u64) -> Option<Staging> {
        let stagings = &mut self.kept.lock().stagings;
        smallest(stagings, bytes..=most_bytes, Staging::size_bytes)
    }

    /// Keeps the memory that fits within the limits. The rest is freed on another thread, since freeing waits for the
    /// uses of the memory.
    pub(super) fn keep(&self, left: Kept) {
        let mut over = Kept::default();
        let mut kept = self.kept.lock();
        let Kept {
            slots, stagings, ..
        } = &mut *kept;
        extend(slots, left.slots, &mut over.slots, Slot::size_bytes);
        let most = &mut over.stagings;
        extend(stagings, left.stagings, most, Staging::size_bytes);
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

/// Keeps what has memory, and moves the oldest to `over` until the rest is within the limits.
fn extend<T>(
    kept: &mut VecDeque<T>,
    left: VecDeque<T>,
    over: &mut VecDeque<T>,
    size_bytes: impl Fn(&T) -> u64,
) {
    kept.extend(left.into_iter().filter(|one| size_bytes(one) > 0));
    while kept.len() > Spares::MOST_SLOTS
        || kept.iter().map(&size_bytes).sum::<u64>() > Spares::MOST_BYTES
    {
        over.extend(kept.pop_front());
    }
}

/// Takes the smallest that has one of these sizes.
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
