//! Batches of host memory that are on the device before they are asked for: a ring of slots of device
//! memory, filled by one thread and handed to the streams of another.
//!
//! A feeder [puts](Ring::put) batches: each takes a free slot, is packed into pinned memory and copied
//! on the ring's own stream. A consumer [takes](Ticket::hand_over) them: its stream waits for the copy,
//! and it gets a [`Lease`]. As long as the lease lives, the memory holds the batch. When it is dropped,
//! whatever the noted streams were given until then still finds the batch; the next batch waits for it.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::explicit::Stream;
//! use sidestream::prefetch::{Leaf, Ring};
//!
//! let device = Device::open("sim:h200")?;
//! let ring = Ring::new(&device, 2)?;
//! let consumer = Stream::non_blocking(&device, "consumer", 0)?;
//! let batch = vec![7u8; 1000];
//! // SAFETY: the vector is there and unchanged during the call.
//! let ticket = unsafe { ring.put(&[Leaf::of(&batch)])? }.expect("the ring is open");
//! let lease = ticket.hand_over(&consumer)?;
//! let mut back = vec![0; 1000];
//! lease.read(0, &mut back)?;
//! assert_eq!(back, batch);
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # Why no batch is ever overwritten
//! Write *U* for the upload stream, *s* for a slot, and look at two batches *a* and *b* that follow each
//! other in *s*. To show: every access to *a* in *s* is over before the copy of *b* into *s* begins.
//!
//! 1. A slot is a value that is moved: from the free slots into a [`put`](Ring::put), into its ticket, into its
//!    lease, and back. So it holds one batch at a time, and *b* is put after the end of *a*'s lease, or
//!    of *a*'s ticket if nobody took it.
//! 2. *a*'s copies are on *U*, and so are *b*'s: they come one after the other (R1). This is all there is if
//!    nobody took the ticket.
//! 3. Else the accesses to *a* are on streams that the lease notes: the one that it was handed over on,
//!    and those that [`Lease::note`] named. The caller promises that there are no others, and that
//!    none is submitted after the lease has ended. The end records an event on each of them, behind all these
//!    accesses (R5), before the slot is among the free ones.
//! 4. `put` makes *U* wait for each of these events before it copies (R6). The waits keep to these records,
//!    since an event is recorded again only when the slot ends its next lease, which comes later (R7).
//! 5. Where *b*'s ring is another one, which took *s* from the [`Spares`] that *a*'s ring left it to, *U* is another stream in 2. So
//!    before anything else the new *U* waits for the event behind *a*'s copies. The events of 3 come along with the slot, and 4 holds.
//! 6. Where an event cannot be recorded, because the stream is being captured or the device is lost, the
//!    slot is *retired*: it is never free again, and its memory goes after all work of the device is over.
//!
//! Pinned memory is reused in the same way: the host waits for the event behind the last copy out of it.
//! The memory of a slot that is too small is given back once the host has waited for all its events.
//!
//! The consumer never reads too early: its stream waits for the event behind the copies (R6), and a
//! stream that is noted later stands behind the consumer's by the caller's promise.
//!
//! # Why nothing hangs
//! `put` waits for a slot only, and what ends the wait is the end of a lease, [`Ring::ask`],
//! [`Ring::pause`] or [`Ring::close`]. A consumer that holds all slots and waits for the next batch would wait forever, so it announces that
//! with `ask`, and `put` adds a slot as soon as no batch is on its way to it. The end of a lease records events under the ring's
//! lock, under which nobody waits for anything else; it never waits for the device.

mod lease;
mod pack;
mod slot;
mod spares;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::alloc::Size;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::explicit::{HostMemory, Stream};
use crate::tracker::{drop_elsewhere, outside_callbacks};

pub use lease::Lease;
use pack::Copiers;
use slot::{Relaxed, Shared, Slot, Staging};
pub use spares::Spares;
use spares::{Kept, Worker};

/// Leaves begin at multiples of this, as allocations of the driver do; kernels may rely on it.
const ALIGN_BYTES: u64 = 512;
/// Pinned memory to pack into: while one is copied to the device, the next is packed.
const STAGINGS: usize = 2;

/// Slots of device memory that batches go through. See [the module](self).
pub struct Ring {
    shared: Arc<Shared>,
    filling: Mutex<Filling>,
}

/// What only the feeder uses.
#[derive(Default)]
struct Filling {
    staging: Vec<Staging>,
    next: usize,
    /// How many bytes of pinned memory there may be, if that is limited.
    most_bytes: Option<u64>,
    /// Absent once the ring is closed.
    worker: Option<Worker>,
}

/// Host memory that becomes one part of a batch on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Its first byte.
    pub address: u64,
    /// How many.
    pub bytes: u64,
    /// It is page-locked, and so large that it is copied from where it is instead of being packed.
    pub direct: bool,
}

impl Leaf {
    /// The bytes of a slice, to be packed.
    pub fn of(bytes: &[u8]) -> Leaf {
        Leaf {
            address: bytes.as_ptr().expose_provenance() as u64,
            bytes: bytes.len() as u64,
            direct: false,
        }
    }
}

/// A batch on its way to the device. Dropped, its slot goes to the next batch.
pub struct Ticket {
    shared: Arc<Shared>,
    uploaded: Arc<crate::explicit::Event>,
    /// Absent once it was handed over.
    slot: Mutex<Option<Slot>>,
    /// Where each leaf lies: its first byte in the slot, and how many.
    layout: Arc<[(u64, u64)]>,
    is_direct: bool,
}

/// What a ring has done so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Batches that were put.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them were copied from where they were.
    pub direct_bytes: u64,
    /// The slots that there are now, with those that batches are in.
    pub slots: usize,
    /// How many were added because the consumer held all of them.
    pub grown: u64,
    /// How many are not used again, because the end of a use could not be recorded.
    pub retired: u64,
    /// Pinned memory that it packs batches into, in bytes.
    pub pinned_bytes: u64,
    /// What a person should know about that.
    pub warnings: Vec<String>,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} batches, {}, of it {} copied from where they were; {} slots, {} added, {} retired; {} pinned",
            self.batches,
            Size(self.bytes),
            Size(self.direct_bytes),
            self.slots,
            self.grown,
            self.retired,
            Size(self.pinned_bytes)
        )?;
        let mut warnings = self.warnings.iter();
        warnings.try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

impl Ring {
    /// A ring of this many slots, with a stream of its own. The memory comes with the first batches: each slot
    /// is as large as its batch, with every leaf at a multiple of 512 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0, or what the driver answers.
    #[track_caller]
    pub fn new(device: &Device, depth: usize) -> Result<Ring> {
        Ring::made(device, depth, None, None)
    }

    /// The same with this many threads that pack, including the calling one.
    ///
    /// # Errors
    /// As [`Ring::new`].
    #[track_caller]
    pub fn with_threads(device: &Device, depth: usize, threads: usize) -> Result<Ring> {
        let upload = Stream::non_blocking(device, "prefetch", 0)?;
        let copiers = Arc::new(Copiers::new(threads));
        Ring::made(device, depth, Some(Worker { upload, copiers }), None)
    }

    #[track_caller]
    fn made(
        device: &Device,
        depth: usize,
        worker: Option<Worker>,
        spares: Option<Spares>,
    ) -> Result<Ring> {
        if depth == 0 {
            return Err(invalid(
                "prefetch",
                "a ring without slots holds no batch; give a depth of 1 or more",
            ));
        }
        let worker = match worker {
            Some(worker) => worker,
            None => Worker {
                upload: Stream::non_blocking(device, "prefetch", 0)?,
                copiers: Arc::new(Copiers::new(pack::default_threads())),
            },
        };
        let shared = Shared::new(device, worker.upload.clone(), depth, spares);
        let filling = Mutex::new(Filling {
            worker: Some(worker),
            ..Filling::default()
        });
        Ok(Ring { shared, filling })
    }

    /// The same ring with at most so many bytes of pinned memory to pack into. Without a limit it takes the largest batch twice, and
    /// some more where batches grow: while one is copied to the device, the next is packed. Where there is room for one alone,
    /// packing waits for the copy.
    ///
    /// # Errors
    /// A [`put`](Ring::put) of a batch that does not fit is refused with [`Error::Invalid`].
    #[must_use]
    pub fn limit_pinned(mut self, most_bytes: u64) -> Ring {
        self.filling.get_mut().most_bytes = Some(most_bytes);
        self
    }

    /// Packs a batch and copies it to the device, in a slot that is free. Nothing if the ring is
    /// paused or closed.
    ///
    /// # Ordering
    /// Holds up the host until a slot is free, until the pinned memory that it packs into was copied, and
    /// while it packs. On the device the copies come behind the uses of the batch that was in the slot.
    ///
    /// # Safety
    /// The memory of each leaf is there and is not written during the call; of a leaf that is
    /// [`direct`](Leaf::direct) it is page-locked memory that this device can read, until
    /// [`Ticket::wait_source`] has returned.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or what the driver answers. Then the memory of all leaves is free again.
    #[track_caller]
    pub unsafe fn put(&self, leaves: &[Leaf]) -> Result<Option<Ticket>> {
        self.refuse_child("put")?;
        self.shared.device.runtime.check()?;
        let _relaxed = Relaxed::on(&self.shared.device);
        let mut filling = self.filling.lock();
        let plan = Plan::of(leaves);
        let Some(mut slot) = self.shared.take(plan.total_bytes)? else {
            return Ok(None);
        };
        // SAFETY: the caller's promise.
        let filled = unsafe { self.fill(&mut filling, &mut slot, leaves, &plan) };
        if let Err(error) = filled {
            // What was submitted by then has no event behind it, and may read memory that the caller
            // takes back. If this fails too, the device is lost and runs nothing.
            let _ = self.shared.upload.synchronize();
            self.shared.give_back(slot);
            return Err(error);
        }
        let mut state = self.shared.state.lock();
        state.statistics.batches += 1;
        state.statistics.bytes += leaves.iter().map(|leaf| leaf.bytes).sum::<u64>();
        state.statistics.direct_bytes += plan.direct_bytes;
        state.under_way += 1;
        drop(state);
        Ok(Some(Ticket {
            shared: Arc::clone(&self.shared),
            uploaded: Arc::clone(&slot.uploaded),
            slot: Mutex::new(Some(slot)),
            is_direct: plan.is_direct(),
            layout: plan.layout.into(),
        }))
    }

    /// # Safety
    /// As [`Ring::put`].
    #[track_caller]
    unsafe fn fill(
        &self,
        filling: &mut Filling,
        slot: &mut Slot,
        leaves: &[Leaf],
        plan: &Plan,
    ) -> Result<()> {
        let (shared, device, upload) = (&self.shared, &self.shared.device, &self.shared.upload);
        let total_bytes = plan.total_bytes.max(ALIGN_BYTES);
        shared.with_memory(|| slot.make_room(device, total_bytes))?;
        let memory = slot.memory_for(upload)?;
        if plan.staged_bytes > 0 {
            let copiers = filling.worker.as_ref().map(|of| Arc::clone(&of.copiers));
            let (staging, most_bytes) = filling.next_of(shared, plan.staged_bytes)?;
            shared.with_memory(|| staging.make_room(device, plan.staged_bytes, most_bytes))?;
            let (host, packed) = (staging.memory(), 0..plan.staged_bytes);
            // SAFETY: nobody else has the pinned memory, since its last copy is over and the ring is locked.
            // The uses of the batch before are waited for. Both stay: slots and pinned memory go when
            // their events are over.
            unsafe {
                host.write_by(packed.clone(), |to| {
                    let copiers = copiers.expect("a ring that is open has its worker");
                    copiers.copy(&plan.pieces(leaves, to));
                });
                upload.memcpy(host.bytes(packed.clone()), memory.bytes(packed))?;
            }
            staging.sent(upload)?;
            self.shared.state.lock().statistics.pinned_bytes = filling.pinned_bytes();
        }
        for (leaf, &(start, bytes)) in leaves.iter().zip(&plan.layout) {
            if leaf.direct && bytes > 0 {
                // SAFETY: the caller promises page-locked memory that stays until the copy is over.
                unsafe {
                    let source = HostMemory::from_raw(device, leaf.address, bytes);
                    upload.memcpy(source.all(), memory.bytes(start..start + bytes))?;
                }
            }
        }
        upload.record(&slot.uploaded)
    }

    /// The consumer waits for the next batch without giving one back (`true`), or waits no longer. While it waits,
    /// a [`put`](Ring::put) that finds no free slot adds one, unless a batch is on its way to the consumer.
    pub fn ask(&self, waits: bool) {
        self.shared.ask(waits);
    }

    /// While it is paused (`true`), a [`put`](Ring::put) returns nothing, even one that waits for a slot.
    pub fn pause(&self, pauses: bool) {
        self.shared.pause(pauses);
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Ends the ring: a [`put`](Ring::put) that waits for a slot returns nothing, and so does every later one. Batches
    /// that were put stay what they are as long as their tickets and leases are there.
    ///
    /// # Ordering
    /// Holds up the host until the uses of the slots that are free are over, and gives back their memory. What is
    /// leased gives back its own when it ends, without holding up anybody. In a function on the host, which may not
    /// wait for the device, nothing is waited for here: the memory goes on another thread. A ring of [`Spares`] leaves its memory
    /// there, and waits for nothing.
    pub fn close(&self) {
        if !self.shared.is_this_process() {
            return;
        }
        let (free, retired) = self.shared.close();
        // A put that runs has ended when this lock is had.
        let filling = std::mem::take(&mut *self.filling.lock());
        self.shared.state.lock().statistics.pinned_bytes = 0;
        let left = Kept::of(free, filling.staging, filling.worker);
        match self.shared.has_spares() {
            true => {
                self.shared.leave(left);
                drop_elsewhere(Box::new(retired));
            }
            false => outside_callbacks(move || drop((left, retired))),
        }
    }

    /// After a fork the child has neither the threads nor the device.
    fn refuse_child(&self, call: &'static str) -> Result<()> {
        match self.shared.is_this_process() {
            true => Ok(()),
            false => Err(invalid(
                call,
                "the ring belongs to the process that this one was forked from; make one here",
            )),
        }
    }
}

impl Drop for Ring {
    /// Never waits: what is in use goes on another thread.
    fn drop(&mut self) {
        let filling = std::mem::take(self.filling.get_mut());
        if !self.shared.is_this_process() {
            std::mem::forget((filling, Arc::clone(&self.shared)));
            return;
        }
        let (free, retired) = self.shared.close();
        self.shared
            .leave(Kept::of(free, filling.staging, filling.worker));
        if !retired.is_empty() {
            drop_elsewhere(Box::new(retired));
        }
    }
}

impl Filling {
    /// The one whose last copy is the oldest, and how many bytes it may have, which are enough.
    #[track_caller]
    fn next_of(&mut self, shared: &Shared, bytes: u64) -> Result<(&mut Staging, u64)> {
        let most_bytes = self.most_bytes.unwrap_or(u64::MAX);
        if bytes > most_bytes {
            let why = format!(
                "a batch of {} is packed into pinned memory, of which there may be {} (max_pinned, limit_pinned); raise that, give more, \
                 smaller batches, or tensors that are pinned already, which are copied from where they are",
                Size(bytes),
                Size(most_bytes)
            );
            return Err(invalid("prefetch", &why));
        }
        if self.staging.len() < STAGINGS {
            self.staging
                .push(match shared.spare_staging(bytes, most_bytes) {
                    Some(staging) => staging,
                    None => Staging::new(&shared.device)?,
                });
        }
        let at = self.next % STAGINGS;
        self.next = at + 1;
        let mut others = self.pinned_bytes() - self.staging[at].size_bytes();
        if bytes > most_bytes.saturating_sub(others) {
            // One alone: it is packed into again when its copy is over.
            for (_, other) in self
                .staging
                .iter_mut()
                .enumerate()
                .filter(|(i, _)| *i != at)
            {
                other.give_back()?;
            }
            others = 0;
        }
        Ok((&mut self.staging[at], most_bytes - others))
    }

    fn pinned_bytes(&self) -> u64 {
        self.staging.iter().map(Staging::size_bytes).sum()
    }
}

impl Ticket {
    /// The batch for work on this stream, which waits for its copy.
    ///
    /// # Ordering
    /// The consumer's stream waits for the copy. Does not hold up the host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was handed over before, or the stream is being captured; or what the driver answers.
    /// Then the ticket is as it was.
    #[track_caller]
    pub fn hand_over(&self, consumer: &Stream) -> Result<Lease> {
        self.shared.device.runtime.check()?;
        let mut held = self.slot.lock();
        if held.is_none() {
            return Err(invalid(
                "hand_over",
                "the batch was handed over before; there is one lease of it",
            ));
        }
        if consumer.is_captured() {
            return Err(invalid(
                "hand_over",
                "the stream is being captured, or is the legacy stream beside a capture, and the copy lies outside of \
                 the capture; take the batch before the capture begins",
            ));
        }
        consumer.wait(&self.uploaded)?;
        let Some(slot) = held.take() else {
            unreachable!("it was seen above, and is locked")
        };
        self.shared.handed_over();
        let (shared, layout) = (Arc::clone(&self.shared), Arc::clone(&self.layout));
        Ok(Lease::new(shared, slot, layout, consumer))
    }

    /// Waits until the memory of the [direct](Leaf::direct) leaves was read. At once if there are none.
    ///
    /// # Ordering
    /// Holds up the host.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn wait_source(&self) -> Result<()> {
        match self.is_direct {
            true => {
                let _relaxed = Relaxed::on(&self.shared.device);
                self.uploaded.synchronize()
            }
            false => Ok(()),
        }
    }

    /// Whether [`Ticket::wait_source`] would return at once.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn is_source_free(&self) -> Result<bool> {
        match self.is_direct {
            true => {
                let _relaxed = Relaxed::on(&self.shared.device);
                self.uploaded.query()
            }
            false => Ok(true),
        }
    }

    /// Whether some leaves are copied from where they are.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(slot) = self.slot.get_mut().take() else {
            return;
        };
        match self.shared.is_this_process() {
            // Nobody used it, and the next copy is on the same stream as this one.
            true => {
                self.shared.handed_over();
                self.shared.give_back(slot);
            }
            false => std::mem::forget((slot, Arc::clone(&self.shared))),
        }
    }
}

/// Where the leaves of a batch go.
struct Plan {
    /// First byte in the slot, and how many.
    layout: Vec<(u64, u64)>,
    /// What is packed lies in front, so that it is one copy.
    staged_bytes: u64,
    direct_bytes: u64,
    total_bytes: u64,
}

impl Plan {
    fn of(leaves: &[Leaf]) -> Plan {
        let mut plan = Plan {
            layout: vec![(0, 0); leaves.len()],
            staged_bytes: 0,
            direct_bytes: 0,
            total_bytes: 0,
        };
        for direct in [false, true] {
            let each = leaves.iter().zip(&mut plan.layout);
            for (leaf, place) in each.filter(|(leaf, _)| leaf.direct == direct && leaf.bytes > 0) {
                *place = (plan.total_bytes, leaf.bytes);
                let end = plan.total_bytes.saturating_add(leaf.bytes);
                match direct {
                    false => plan.staged_bytes = end,
                    true => plan.direct_bytes += leaf.bytes,
                }
                // More than there is: the allocation refuses it.
                plan.total_bytes = end.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(end);
            }
        }
        plan
    }

    fn is_direct(&self) -> bool {
        self.direct_bytes > 0
    }

    /// What has to be packed, with its place behind `to`.
    fn pieces(&self, leaves: &[Leaf], to: *mut u8) -> Vec<pack::Piece> {
        let each = leaves.iter().zip(&self.layout);
        let staged = each.filter(|(leaf, _)| !leaf.direct && leaf.bytes > 0);
        staged
            .map(|(leaf, &(start, bytes))| pack::Piece {
                from: leaf.address as usize,
                to: to.expose_provenance() + start as usize,
                bytes: bytes as usize,
            })
            .collect()
    }
}

fn invalid(call: &'static str, why: &str) -> Error {
    let why = why.to_owned();
    Error::Invalid { call, why }
}
