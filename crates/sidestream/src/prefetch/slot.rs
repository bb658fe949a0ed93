//! Slots and pinned memory, each with the events recorded after its last use, and their owners.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::Statistics;
use super::spares::{Kept, Spares};
use crate::backend::BesideCaptures;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::explicit::{DeviceMemory, Event, HostMemory, Stream};
use crate::tracker::drop_elsewhere;

/// Memory for one batch.
pub(super) struct Slot {
    memory: Option<DeviceMemory>,
    /// The event recorded after the copies of the batch.
    pub uploaded: Arc<Event>,
    /// The events recorded after the uses of the previous batch, one for each stream.
    uses: Vec<Event>,
    /// Events that are not in use, to be recorded again.
    spare: Vec<Event>,
    /// The streams on which the end of the uses could not be recorded.
    unended: Vec<Stream>,
}

/// Pinned memory into which batches are packed.
pub(super) struct Staging {
    memory: Option<HostMemory>,
    copied: Event,
    is_sent: bool,
}

/// The state that a ring shares with its tickets and leases.
pub(super) struct Shared {
    pub device: Device,
    pub upload: Stream,
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// The stream for downloads, made by the first download.
    down: Mutex<Option<Stream>>,
    /// The store from which the ring takes its memory, and to which it returns that memory.
    spares: Option<Spares>,
}

#[derive(Default)]
pub(super) struct State {
    /// The free slots; the one that has been free for longest is at the front.
    free: VecDeque<Slot>,
    retired: Vec<Slot>,
    /// The largest number of slots.
    capacity: usize,
    /// The number of batches that were put and not handed over yet.
    pub under_way: usize,
    /// Whether the consumer keeps its batches and waits for another.
    pub is_asked: bool,
    pub is_paused: bool,
    is_closed: bool,
    /// What is returned to the user. Its number of slots, which excludes the retired ones, is kept at all times.
    pub statistics: Statistics,
}

impl Shared {
    pub(super) fn new(
        device: &Device,
        upload: Stream,
        depth: usize,
        spares: Option<Spares>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            device: device.clone(),
            upload,
            state: Mutex::new(State {
                capacity: depth,
                ..State::default()
            }),
            changed: Condvar::new(),
            down: Mutex::default(),
            spares,
        })
    }

    /// Whether this process made the ring: a child of a fork has neither the device nor the threads of its parent.
    pub(super) fn is_this_process(&self) -> bool {
        self.device.runtime.backend.is_this_process()
    }

    /// Blocks until a slot is free for the next batch, of `bytes` bytes, and returns it; `None` while the ring is paused, or once
    /// it is closed.
    pub(super) fn take(&self, bytes: u64) -> Result<Option<Slot>> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed || state.is_paused {
                return Ok(None);
            }
            if state.is_starved() {
                state.capacity += 1;
                state.statistics.grown += 1;
                // Each request of the consumer adds one slot.
                state.is_asked = false;
            }
            // A new slot needs no wait, while a reused one waits for its last uses.
            if state.statistics.slots < state.capacity {
                state.statistics.slots += 1;
                drop(state);
                return self.make(bytes).map(Some);
            }
            if let Some(slot) = state.free.pop_front() {
                return Ok(Some(slot));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Makes a slot that is already counted. Called without the lock, since it calls the driver.
    fn make(&self, bytes: u64) -> Result<Slot> {
        let slot = match self.spares.as_ref().and_then(|spares| spares.slot(bytes)) {
            Some(slot) => slot.moved_to(&self.upload),
            None => Slot::new(&self.device),
        };
        if slot.is_err() {
            self.state.lock().statistics.slots -= 1;
            self.changed.notify_all();
        }
        slot
    }

    /// Takes back a slot that contains no batch any longer.
    pub(super) fn give_back(&self, slot: Slot) {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            self.leave(Kept::of(vec![slot], Vec::new(), None));
            return;
        }
        state.free.push_back(slot);
        self.changed.notify_all();
    }

    /// Passes on memory that this ring no longer uses. Never blocks: memory that no other ring will use is freed on another
    /// thread.
    pub(super) fn leave(&self, left: Kept) {
        match &self.spares {
            Some(spares) => spares.keep(left),
            None if left.is_empty() => {}
            None => drop_elsewhere(Box::new(left)),
        }
    }

    /// Calls a function that allocates; if there is no memory, frees the memory that earlier rings left, and calls it again.
    pub(super) fn with_memory(&self, mut make: impl FnMut() -> Result<()>) -> Result<()> {
        match (make(), &self.spares) {
            (Err(Error::OutOfMemory(_)), Some(spares)) => {
                spares.clear();
                make()
            }
            (made, _) => made,
        }
    }

    pub(super) fn spare_staging(&self, bytes: u64, most_bytes: u64) -> Option<Staging> {
        self.spares.as_ref()?.staging(bytes, most_bytes)
    }

    /// Whether the ring's memory is kept for another ring.
    pub(super) fn has_spares(&self) -> bool {
        self.spares.is_some()
    }

    /// Retires a slot whose last uses have no event: it is not used again, and a new one may replace it.
    pub(super) fn retire(&self, slot: Slot, why: String) {
        let mut state = self.state.lock();
        state.statistics.retired += 1;
        if state.statistics.warnings.len() < 16 {
            state.statistics.warnings.push(why);
        }
        state.statistics.slots -= 1;
        if state.is_closed {
            drop(state);
            drop_elsewhere(Box::new(slot));
            return;
        }
        state.retired.push(slot);
        self.changed.notify_all();
    }

    pub(super) fn handed_over(&self) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        state.is_asked = false;
        self.changed.notify_all();
    }

    /// Returns the stream for downloads.
    pub(super) fn download(&self) -> Result<Stream> {
        let mut down = self.down.lock();
        let stream = match down.take() {
            Some(stream) => stream,
            None => Stream::non_blocking(&self.device, "prefetch down", 0)?,
        };
        Ok(down.insert(stream).clone())
    }

    /// Closes the ring. Returns the free slots, which the caller passes on, and the retired slots, which no other ring may use.
    pub(super) fn close(&self) -> (Vec<Slot>, Vec<Slot>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        let slots: Vec<Slot> = state.free.drain(..).collect();
        state.statistics.slots -= slots.len();
        (slots, std::mem::take(&mut state.retired))
    }
}

impl State {
    /// Whether the consumer keeps all slots and waits for the next batch.
    fn is_starved(&self) -> bool {
        let has_all = self.statistics.slots >= self.capacity;
        self.is_asked && self.under_way == 0 && self.free.is_empty() && has_all
    }
}

impl Slot {
    pub(super) fn new(device: &Device) -> Result<Slot> {
        Ok(Slot {
            memory: None,
            uploaded: Arc::new(Event::blocking(device)?),
            uses: Vec::new(),
            spare: Vec::new(),
            unended: Vec::new(),
        })
    }

    /// Moves a slot to a ring with this upload stream: the stream waits for the copies on the previous ring's stream, including
    /// those of a batch that was never taken.
    pub(super) fn moved_to(self, upload: &Stream) -> Result<Slot> {
        upload.wait(&self.uploaded)?;
        Ok(self)
    }

    /// Ensures a size of at least `bytes`. Memory that is too small is replaced, which waits for its uses.
    #[track_caller]
    pub(super) fn make_room(&mut self, device: &Device, bytes: u64) -> Result<()> {
        let has = self.size_bytes();
        if has < bytes {
            self.settle()?;
            // The old memory is freed first, so that both never exist at the same time.
            self.memory = None;
            self.memory = Some(DeviceMemory::malloc(device, larger(has, bytes))?);
        }
        Ok(())
    }

    /// Returns the memory, which is large enough, for work that is enqueued in this stream from now on: the stream waits for
    /// the uses of the previous batch.
    #[track_caller]
    pub(super) fn memory_for(&mut self, upload: &Stream) -> Result<&DeviceMemory> {
        for event in &self.uses {
            upload.wait(event)?;
        }
        self.spare.append(&mut self.uses);
        match &self.memory {
            Some(memory) => Ok(memory),
            None => unreachable!("the caller ensured the size"),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::size_bytes)
    }

    pub(super) fn memory(&self) -> Option<&DeviceMemory> {
        self.memory.as_ref()
    }

    /// Records the end of the uses of the batch: only work enqueued in these streams so far uses it.
    ///
    /// # Errors
    /// If the end could not be recorded; then the slot may not be used again.
    pub(super) fn end_uses(
        &mut self,
        device: &Device,
        streams: impl IntoIterator<Item = Stream>,
    ) -> Result<(), String> {
        let mut why = Ok(());
        for stream in streams {
            if let Err(error) = self.end_use(device, &stream) {
                self.unended.push(stream);
                why = Err(error);
            }
        }
        why
    }

    fn end_use(&mut self, device: &Device, stream: &Stream) -> Result<(), String> {
        // The record would become part of the capture, which the ring cannot wait for.
        if stream.is_captured() {
            return Err(
                "a batch was released while a stream that uses it was being captured, or was the legacy stream during a \
                 capture, so its memory is not used again; keep the batch until the capture has ended"
                    .to_owned(),
            );
        }
        let spare = self.spare.pop().map_or_else(|| Event::new(device), Ok);
        let recorded = spare.and_then(|event| stream.record(&event).map(|()| event));
        let event = recorded.map_err(|error| {
            format!(
                "the end of the use of a batch could not be recorded, so its memory is not used again: \
                 {error}"
            )
        })?;
        self.uses.push(event);
        Ok(())
    }

    /// Waits for all work that uses the memory.
    fn settle(&mut self) -> Result<()> {
        self.uploaded.synchronize()?;
        for event in &self.uses {
            event.synchronize()?;
        }
        self.spare.append(&mut self.uses);
        Ok(())
    }
}

impl Drop for Slot {
    /// Waits for the uses before the memory is freed. Memory whose uses have no recorded end is leaked.
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let device = memory.device();
        let _beside = BesideCaptures::on(&*device.runtime.backend);
        let unended = std::mem::take(&mut self.unended);
        if self.end_uses(&device, unended).is_ok() && self.settle().is_ok() {
            drop(memory)
        } else {
            std::mem::forget(memory)
        }
    }
}

impl Staging {
    pub(super) fn new(device: &Device) -> Result<Staging> {
        Ok(Staging {
            memory: None,
            copied: Event::blocking(device)?,
            is_sent: false,
        })
    }

    /// Ensures a size of at least `bytes`, once the last copy from it is complete. Memory that grows is made somewhat larger, up
    /// to `most_bytes`.
    #[track_caller]
    pub(super) fn make_room(&mut self, device: &Device, bytes: u64, most_bytes: u64) -> Result<()> {
        self.settle()?;
        let has = self.size_bytes();
        if has < bytes {
            self.memory = None;
            let memory = HostMemory::pinned(device, larger(has, bytes).min(most_bytes))?;
            self.memory = Some(memory);
        }
        Ok(())
    }

    /// Returns the memory, which is large enough.
    pub(super) fn memory(&self) -> &HostMemory {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("the caller ensured the size"),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, HostMemory::size_bytes)
    }

    /// Frees the memory once the last copy from it is complete.
    pub(super) fn give_back(&mut self) -> Result<()> {
        self.settle()?;
        self.memory = None;
        Ok(())
    }

    /// Records that a copy from this memory was enqueued in the stream.
    pub(super) fn sent(&mut self, upload: &Stream) -> Result<()> {
        self.is_sent = true;
        upload.record(&self.copied)
    }

    fn settle(&mut self) -> Result<()> {
        if self.is_sent {
            self.copied.synchronize()?;
            self.is_sent = false;
        }
        Ok(())
    }
}

impl Drop for Staging {
    /// Waits for the last copy, like [`Slot`].
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let device = memory.device();
        let _beside = BesideCaptures::on(&*device.runtime.backend);
        match self.settle() {
            Ok(()) => drop(memory),
            Err(_) => std::mem::forget(memory),
        }
    }
}

/// Returns the new size of memory that has `has` bytes: larger than wanted, since memory that grew once is likely to
/// grow again.
fn larger(has: u64, wanted: u64) -> u64 {
    wanted.max(has.saturating_add(has / 4))
}
