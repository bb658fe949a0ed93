//! A batch on the device, as long as somebody holds it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::invalid;
use super::slot::{Relaxed, Shared, Slot};
use crate::error::Result;
use crate::explicit::{HostMemory, Region, Stream};
use crate::tracker::{drop_elsewhere, outside_callbacks};

/// A batch, for work on the streams that it notes: the one that it was handed over on, and those that were
/// [noted](Lease::note) later.
///
/// Dropping it ends the batch: what these streams were given until then still finds it. The drop records an event on each of
/// them, from any thread. It waits neither for them nor for anything else of the device.
pub struct Lease {
    shared: Arc<Shared>,
    /// There until the drop.
    slot: Option<Slot>,
    layout: Arc<[(u64, u64)]>,
    streams: Mutex<Streams>,
    /// The slot is not one of the ring's.
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

    /// How many leaves it has.
    pub fn leaves(&self) -> usize {
        self.layout.len()
    }

    /// One of its leaves.
    ///
    /// # Panics
    /// If there are not so many.
    #[track_caller]
    pub fn leaf(&self, index: usize) -> Region<'_> {
        let (start, bytes) = self.layout[index];
        self.memory().bytes(start..start + bytes)
    }

    /// The address of its memory, and how many bytes that has.
    pub fn address(&self) -> (u64, u64) {
        let all = self.memory().all();
        (all.address(), all.size_bytes())
    }

    /// PyTorch's `record_stream`: the batch is used on this stream too. Its memory goes to another batch only behind
    /// all that the stream is given until the lease ends (R54).
    ///
    /// # Ordering
    /// None: the stream has to be made to wait for the one that it was handed over on, or for whatever wrote the
    /// batch last.
    pub fn note(&self, stream: &Stream) {
        if !self.shared.is_this_process() {
            return;
        }
        let mut streams = self.streams.lock();
        if !streams.iter().any(|noted| noted.is(stream)) {
            streams.push(stream.clone());
        }
    }

    /// The bytes of a leaf, behind all that the noted streams were given so far.
    ///
    /// # Ordering
    /// Holds up the host until these streams have come so far and the bytes are there.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::error::Error::Invalid) if `into` has another length or a noted stream is being
    /// captured, or what the driver answers.
    ///
    /// # Panics
    /// If there are fewer leaves.
    #[track_caller]
    pub fn read(&self, index: usize, into: &mut [u8]) -> Result<()> {
        let leaf = self.leaf(index);
        if leaf.size_bytes() != into.len() as u64 {
            return Err(invalid(
                "read",
                "the leaf has another number of bytes than there is room for; give it exactly that room",
            ));
        }
        if into.is_empty() {
            return Ok(());
        }
        let device = &self.shared.device;
        device.runtime.check()?;
        let _relaxed = Relaxed::on(device);
        let down = self.shared.download()?;
        self.stand_behind("read", &down)?;
        // Not pinned memory: giving that back waits for the device, which ends captures of other threads.
        let host = HostMemory::pageable(device, leaf.size_bytes())?;
        // SAFETY: the stream waits for all that may write the leaf, the lease keeps it until its stream
        // has come so far, and the host waits below before it reads or drops its own memory.
        let copied = unsafe { down.memcpy(leaf, host.all()) };
        let waited = down.synchronize();
        if waited.is_err() {
            // The device may still write it.
            std::mem::forget(host);
            return waited;
        }
        copied?;
        host.read(0, into);
        Ok(())
    }

    /// The same batch in memory of its own, copied on this stream: this lease can go, and its slot to another
    /// batch. The copy's memory goes when its own lease has ended and the uses are over.
    ///
    /// # Ordering
    /// As a copy on the stream, which waits for all that the noted streams were given so far, and is noted itself.
    /// Does not hold up the host, but for the allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::error::Error::Invalid) if the stream or a noted one is being captured,
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory), or what the driver answers.
    #[track_caller]
    pub fn copied(&self, stream: &Stream) -> Result<Lease> {
        let device = &self.shared.device;
        device.runtime.check()?;
        let _relaxed = Relaxed::on(device);
        self.stand_behind("copied", stream)?;
        let mut slot = Slot::new(device)?;
        let from = self.memory().all();
        let shared = &self.shared;
        shared.with_memory(|| slot.make_room(device, from.size_bytes()))?;
        let memory = slot.memory_for(stream)?;
        // SAFETY: the stream stands behind all that writes the source. It is noted in the lease of the source,
        // and in that of the copy, whose memory is new.
        unsafe { stream.memcpy(from, memory.all())? };
        if let Err(error) = stream.record(&slot.uploaded) {
            // The copy is under way: the memory goes when that is over, or never if nobody can tell.
            let _ = slot.end_uses(device, [stream.clone()]);
            drop_elsewhere(Box::new(slot));
            return Err(error);
        }
        let (shared, layout) = (Arc::clone(&self.shared), Arc::clone(&self.layout));
        let mut lease = Lease::new(shared, slot, layout, stream);
        lease.is_copy = true;
        Ok(lease)
    }

    /// Notes the stream, and makes it wait for all that the others were given. So it stands behind the upload too:
    /// the first of them waited for that when the batch was handed over, and a copy was made on it.
    ///
    /// # Errors
    /// If one of them is being captured, which the wait would become a part of; or what the driver answers.
    fn stand_behind(&self, call: &'static str, stream: &Stream) -> Result<()> {
        let noted = self.streams.lock().clone();
        if noted.iter().chain([stream]).any(Stream::is_captured) {
            return Err(invalid(
                call,
                "a stream that uses the batch is being captured, or is the legacy stream beside a capture, and this \
                 lies outside of the capture; do it before the capture begins, or when the capture has ended",
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
            None => unreachable!("a slot is handed over with its memory, and stays until the drop"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        // A child of a fork has the memory of its parent's objects, and none of its device.
        let (shared, streams) = (
            Arc::clone(&self.shared),
            std::mem::take(self.streams.get_mut()),
        );
        if !shared.is_this_process() {
            std::mem::forget((slot, shared, streams));
            return;
        }
        let is_copy = self.is_copy;
        // It calls the driver.
        outside_callbacks(move || end(&shared, slot, streams, is_copy));
    }
}

/// The end of a lease.
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
