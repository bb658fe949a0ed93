//! A lease: the right to use a batch on the device.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::invalid;
use super::slot::{Shared, Slot};
use crate::backend::BesideCaptures;
use crate::error::Result;
use crate::explicit::{HostMemory, Region, Stream};
use crate::tracker::{drop_elsewhere, outside_callbacks};

/// The right to use a batch on the noted streams: the one on which it was handed over, and those that were
/// [noted](Lease::note) later.
///
/// Dropping it ends the use of the batch: work that is already enqueued in these streams still finds it. The drop records an
/// event on each of them, from any thread. It waits neither for them nor for anything else of the device.
pub struct Lease {
    shared: Arc<Shared>,
    /// `Some` until the drop.
    slot: Option<Slot>,
    layout: Arc<[(u64, u64)]>,
    streams: Mutex<Streams>,
    /// Whether the slot is a copy that does not belong to the ring.
    is_copy: bool,
}

type Streams = SmallVec<[Stream; 2]>;

impl Lease {
    pub(super) fn new(
        shared: Arc<Shared>,
        slot: Slot,
        layout: Arc<[(u64, u64)]>,
        consumer: &Stream,
    ) -> Lease {
        let streams = Mutex::new(SmallVec::from_elem(consumer.clone(), 1));
        Lease {
            shared,
            slot: Some(slot),
            layout,
            streams,
            is_copy: false,
        }
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        self.layout.len()
    }

    /// Returns one of the batch's leaves.
    ///
    /// # Panics
    /// If `index` is not less than [`leaves`](Self::leaves).
    #[track_caller]
    pub fn leaf(&self, index: usize) -> Region<'_> {
        let (start, bytes) = self.layout[index];
        self.memory().bytes(start..start + bytes)
    }

    /// Returns the address and the size in bytes of the batch's memory.
    pub fn address(&self) -> (u64, u64) {
        let all = self.memory().all();
        (all.address(), all.size_bytes())
    }

    /// Notes that the batch is used on this stream too, like PyTorch's `record_stream`. Its memory is reused for another batch
    /// only after all work that is enqueued in the stream before the lease ends (R54).
    ///
    /// # Ordering
    /// None: the caller must make the stream wait for the stream on which the batch was handed over, or for the work
    /// that wrote the batch last.
    pub fn note(&self, stream: &Stream) {
        if !self.shared.is_this_process() {
            return;
        }
        let mut streams = self.streams.lock();
        if !streams.iter().any(|noted| noted.is(stream)) {
            streams.push(stream.clone());
        }
    }

    /// Reads the bytes of a leaf, after all work enqueued in the noted streams so far.
    ///
    /// # Ordering
    /// Blocks the host until that work and the copy are complete.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::error::Error::Invalid) if `into` has another length or a noted stream is being
    /// captured, or an error of the driver.
    ///
    /// # Panics
    /// If `index` is not less than [`leaves`](Self::leaves).
    #[track_caller]
    pub fn read(&self, index: usize, into: &mut [u8]) -> Result<()> {
        let leaf = self.leaf(index);
        if leaf.size_bytes() != into.len() as u64 {
            return Err(invalid(
                "read",
                "the target has another size than the leaf; give it the size of the leaf",
            ));
        }
        if into.is_empty() {
            return Ok(());
        }
        let device = &self.shared.device;
        device.runtime.check()?;
        let _beside = BesideCaptures::on(&*device.runtime.backend);
        let down = self.shared.download()?;
        self.wait_for_uses("read", &down)?;
        // Pageable and not pinned: freeing pinned memory waits for the device.
        let host = HostMemory::pageable(device, leaf.size_bytes())?;
        // SAFETY: the stream waits for everything that may write the leaf, the lease keeps the leaf valid until
        // the copy is complete, and the host waits below before it reads or drops its own memory.
        let copied = unsafe { down.memcpy(leaf, host.all()) };
        let waited = down.synchronize();
        if waited.is_err() {
            // The device may still write this memory, so it is leaked.
            std::mem::forget(host);
            return waited;
        }
        copied?;
        host.read(0, into);
        Ok(())
    }

    /// Copies the batch on this stream to separate memory, so that this lease can be dropped and its slot reused for another
    /// batch. The memory of the copy is freed when its own lease has ended and the uses are complete.
    ///
    /// # Ordering
    /// The copy is on the stream, which waits for all work enqueued in the noted streams so far, and is noted itself. Does
    /// not block the host, except for the allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::error::Error::Invalid) if the stream or a noted one is being captured,
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory), or an error of the driver.
    #[track_caller]
    pub fn copied(&self, stream: &Stream) -> Result<Lease> {
        let device = &self.shared.device;
        device.runtime.check()?;
        let _beside = BesideCaptures::on(&*device.runtime.backend);
        self.wait_for_uses("copied", stream)?;
        let mut slot = Slot::new(device)?;
        let from = self.memory().all();
        let shared = &self.shared;
        shared.with_memory(|| slot.make_room(device, from.size_bytes()))?;
        let memory = slot.memory_for(stream)?;
        // SAFETY: the stream is ordered after everything that writes the source. The stream is noted in the lease of
        // the source, and in that of the copy, whose memory is new.
        unsafe { stream.memcpy(from, memory.all())? };
        if let Err(error) = stream.record(&slot.uploaded) {
            // The copy is in flight: the memory is freed when it is complete, or leaked if that cannot be known.
            let _ = slot.end_uses(device, [stream.clone()]);
            drop_elsewhere(Box::new(slot));
            return Err(error);
        }
        let (shared, layout) = (Arc::clone(&self.shared), Arc::clone(&self.layout));
        let mut lease = Lease::new(shared, slot, layout, stream);
        lease.is_copy = true;
        Ok(lease)
    }

    /// Notes the stream, and makes it wait for all work enqueued in the others. So the stream is ordered after the
    /// upload too: the first noted stream waited for the upload when the batch was handed over, or is the stream on
    /// which a copy of the batch was made.
    ///
    /// # Errors
    /// If one of them is being captured, since the wait would become part of the capture; or an error of the driver.
    fn wait_for_uses(&self, call: &'static str, stream: &Stream) -> Result<()> {
        let noted = self.streams.lock().clone();
        if noted.iter().chain([stream]).any(Stream::is_captured) {
            return Err(invalid(
                call,
                "a stream that uses the batch is being captured, or is the legacy stream during a capture, and this call is \
                 outside the capture; make it before the capture begins, or when the capture has ended",
            ));
        }
        for other in noted.iter().filter(|other| !other.is(stream)) {
            stream.wait_stream(other)?;
        }
        self.note(stream);
        Ok(())
    }

    fn memory(&self) -> &crate::explicit::DeviceMemory {
        match self.slot.as_ref().and_then(Slot::memory) {
            Some(memory) => memory,
            None => {
                unreachable!("a slot is handed over with its memory, and is kept until the drop")
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        // A child of a fork has a copy of the objects of its parent, but not its device.
        let (shared, streams) = (
            Arc::clone(&self.shared),
            std::mem::take(self.streams.get_mut()),
        );
        if !shared.is_this_process() {
            std::mem::forget((slot, shared, streams));
            return;
        }
        let is_copy = self.is_copy;
        // Not in a host function, since ending a lease calls the driver.
        outside_callbacks(move || end(&shared, slot, streams, is_copy));
    }
}

/// Ends a lease.
fn end(shared: &Shared, mut slot: Slot, streams: Streams, is_copy: bool) {
    let ended = slot.end_uses(&shared.device, streams);
    match (ended, is_copy) {
        (_, true) => drop_elsewhere(Box::new(slot)),
        (Ok(()), false) => shared.give_back(slot),
        (Err(why), false) => shared.retire(slot, why),
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?})", self.memory())
    }
}
