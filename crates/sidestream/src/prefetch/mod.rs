//! Prefetches batches from host memory to the device: a ring of slots of device memory, filled by one thread and
//! handed to the streams of another.
//!
//! A feeder [puts](Ring::put) batches: each takes a free slot, is packed into pinned memory and copied on the ring's
//! own stream. A consumer [takes](Ticket::hand_over) them: its stream waits for the copy, and it receives a [`Lease`]. As long
//! as the lease exists, the memory contains the batch. Work that was enqueued in the noted streams before the lease is
//! dropped still finds the batch; the copy of the next batch waits for that work.
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
//! // SAFETY: the vector is valid and unchanged during the call.
//! let ticket = unsafe { ring.put(&[Leaf::of(&batch)])? }.expect("the ring is open");
//! let lease = ticket.hand_over(&consumer)?;
//! let mut back = vec![0; 1000];
//! lease.read(0, &mut back)?;
//! assert_eq!(back, batch);
//! # Ok::<(), sidestream::error::Error>(())
//! ```
//!
//! # Why no batch is ever overwritten
//! Let *U* be the upload stream, *s* a slot, and *a* and *b* two consecutive batches in *s*. Claim: every access to *a*
//! in *s* is complete before the copy of *b* into *s* begins.
//!
//! 1. A slot is a value that is moved: from the free slots into a [`put`](Ring::put), into its ticket, into its
//!    lease, and back. So it contains one batch at a time, and *b* is put after the end of *a*'s lease, or
//!    of *a*'s ticket if the batch was never taken.
//! 2. The copies of both *a* and *b* are on *U*, so they are in order (R1). If the batch was never taken, there are no
//!    other accesses.
//! 3. Otherwise the accesses to *a* are on streams that the lease notes: the one on which it was handed over,
//!    and those passed to [`Lease::note`]. The caller guarantees that there are no others, and that none is enqueued
//!    after the lease has ended. The end of the lease records an event on each of them, after all these accesses
//!    (R5), before the slot becomes free.
//! 4. `put` makes *U* wait for each of these events before it copies (R6). The waits refer to these records,
//!    since an event is recorded again only at the end of the slot's next lease, which comes later (R7).
//! 5. If *b* belongs to another ring, which took *s* from the [`Spares`] to which *a*'s ring returned it, *U* is another stream
//!    in 2. So the new *U* first waits for the event after *a*'s copies. The events of 3 stay with the slot, so 4 applies.
//! 6. If an event cannot be recorded, because the stream is being captured or the device is lost, the slot is
//!    *retired*: it never becomes free again, and its memory is freed after all work of the device is complete.
//!
//! Pinned memory is reused in the same way: the host waits for the event after the last copy from it. The memory
//! of a slot that is too small is freed once the host has waited for all its events.
//!
//! The consumer never reads too early: its stream waits for the event after the copies (R6), and the caller guarantees
//! that a stream noted later is ordered after the consumer's.
//!
//! # Why nothing deadlocks
//! `put` blocks only for a slot, and the wait ends with the end of a lease, [`Ring::ask`], [`Ring::pause`] or
//! [`Ring::close`]. A consumer that keeps all slots and waits for the next batch would wait forever, so it announces its
//! wait with `ask`, and `put` adds a slot when no other batch is on its way. The end of a lease records events under the
//! ring's lock, under which no thread waits for anything else; it never waits for the device.

mod lease;
mod pack;
mod slot;
mod spares;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::alloc::Size;
use crate::backend::BesideCaptures;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::explicit::{HostMemory, Stream};
use crate::tracker::{drop_elsewhere, outside_callbacks};

pub use lease::Lease;
use pack::Copiers;
use slot::{Shared, Slot, Staging};
pub use spares::Spares;
use spares::{Kept, Worker};

/// The alignment of leaves, as of driver allocations; kernels may rely on it.
const ALIGN_BYTES: u64 = 512;
/// The number of pinned buffers: while one is copied to the device, the next batch is packed into another.
const STAGINGS: usize = 2;

/// A ring of slots of device memory for batches. See [the module](self).
pub struct Ring {
    shared: Arc<Shared>,
    filling: Mutex<Filling>,
}

/// The state that only the feeder uses.
#[derive(Default)]
struct Filling {
    staging: Vec<Staging>,
    next: usize,
    /// The limit on the bytes of pinned memory, if there is one.
    most_bytes: Option<u64>,
    /// `None` once the ring is closed.
    worker: Option<Worker>,
}

/// Host memory that becomes one part (leaf) of a batch on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The address of its first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the memory is page-locked and large, so that it is copied directly instead of being packed.
    pub direct: bool,
}

impl Leaf {
    /// Returns the leaf of a slice, which is packed.
    pub fn of(bytes: &[u8]) -> Leaf {
        Leaf {
            address: bytes.as_ptr().expose_provenance() as u64,
            bytes: bytes.len() as u64,
            direct: false,
        }
    }
}

/// A batch on its way to the device. Dropping it frees its slot for the next batch.
pub struct Ticket {
    shared: Arc<Shared>,
    uploaded: Arc<crate::explicit::Event>,
    /// `None` once the batch was handed over.
    slot: Mutex<Option<Slot>>,
    /// By leaf: its offset in the slot, and its size in bytes.
    layout: Arc<[(u64, u64)]>,
    is_direct: bool,
}

/// The statistics of a ring.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// The number of batches put.
    pub batches: u64,
    /// The total size of these batches, in bytes.
    pub bytes: u64,
    /// The bytes that were copied directly, without packing.
    pub direct_bytes: u64,
    /// The number of slots now, including those in use.
    pub slots: usize,
    /// The number of slots that were added because the consumer kept the batches of all existing slots.
    pub grown: u64,
    /// The number of slots that are not used again, because the end of a use could not be recorded.
    pub retired: u64,
    /// The size of the pinned memory into which batches are packed, in bytes.
    pub pinned_bytes: u64,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} batches, {}, of these {} copied without packing; {} slots, {} added, {} retired; {} pinned",
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
    /// Returns a ring of this many slots, with its own stream. Memory is allocated with the first batches: each slot is as
    /// large as its batch, with every leaf at a multiple of 512 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0, or an error of the driver.
    #[track_caller]
    pub fn new(device: &Device, depth: usize) -> Result<Ring> {
        Ring::made(device, depth, None, None)
    }

    /// Like [`Ring::new`], but with this many packing threads, including the calling one.
    ///
    /// # Errors
    /// Like [`Ring::new`].
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
                "a ring needs at least one slot; give a depth of 1 or more",
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

    /// Limits the pinned memory for packing to `most_bytes`. Without a limit, this memory is twice as large as the
    /// largest batch, and somewhat larger where batches grow: while one batch is copied to the device, the next is
    /// packed. If only one batch fits, packing waits for the copy.
    ///
    /// # Errors
    /// A [`put`](Ring::put) of a batch that does not fit is refused with [`Error::Invalid`].
    #[must_use]
    pub fn limit_pinned(mut self, most_bytes: u64) -> Ring {
        self.filling.get_mut().most_bytes = Some(most_bytes);
        self
    }

    /// Packs a batch and copies it to the device, into a free slot. Returns `None` if the ring is paused or closed.
    ///
    /// # Ordering
    /// Blocks the host until a slot is free, until the last copy from the pinned memory is complete, and while it packs. On
    /// the device the copies are ordered after the uses of the slot's previous batch.
    ///
    /// # Safety
    /// The memory of each leaf must be valid and must not be written during the call. The memory of a
    /// [`direct`](Leaf::direct) leaf must be page-locked memory that this device can read, and stay so until
    /// [`Ticket::wait_source`] has returned.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or an error of the driver. The memory of all leaves is then no longer in use.
    #[track_caller]
    pub unsafe fn put(&self, leaves: &[Leaf]) -> Result<Option<Ticket>> {
        self.refuse_child("put")?;
        self.shared.device.runtime.check()?;
        let _beside = BesideCaptures::on(&*self.shared.device.runtime.backend);
        let mut filling = self.filling.lock();
        let plan = Plan::of(leaves);
        let Some(mut slot) = self.shared.take(plan.total_bytes)? else {
            return Ok(None);
        };
        // SAFETY: guaranteed by the caller.
        let filled = unsafe { self.fill(&mut filling, &mut slot, leaves, &plan) };
        if let Err(error) = filled {
            // No event follows the work submitted so far, which may read memory that the caller takes
            // back. If this fails too, the device is lost and runs nothing.
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
    /// As for [`Ring::put`].
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
            // SAFETY: nothing else uses the pinned memory, since its last copy is complete and the ring is locked.
            // The stream waits for the uses of the previous batch. Both stay valid: slots and pinned memory are
            // freed only when their events are complete.
            unsafe {
                host.write_by(packed.clone(), |to| {
                    let copiers = copiers.expect("an open ring has its worker");
                    copiers.copy(&plan.pieces(leaves, to));
                });
                upload.memcpy(host.bytes(packed.clone()), memory.bytes(packed))?;
            }
            staging.sent(upload)?;
            self.shared.state.lock().statistics.pinned_bytes = filling.pinned_bytes();
        }
        for (leaf, &(start, bytes)) in leaves.iter().zip(&plan.layout) {
            if leaf.direct && bytes > 0 {
                // SAFETY: the caller guarantees page-locked memory that stays valid until the copy is complete.
                unsafe {
                    let source = HostMemory::from_raw(device, leaf.address, bytes);
                    upload.memcpy(source.all(), memory.bytes(start..start + bytes))?;
                }
            }
        }
        upload.record(&slot.uploaded)
    }

    /// Announces that the consumer waits for the next batch without returning one (`true`), or waits no longer (`false`). While
    /// it waits, a [`put`](Ring::put) that finds no free slot adds one, unless a batch is on its way to the consumer.
    pub fn ask(&self, waits: bool) {
        self.shared.state.lock().is_asked = waits;
        self.shared.changed.notify_all();
    }

    /// Pauses the ring (`true`) or resumes it. While it is paused, [`put`](Ring::put) returns `None`, even one that waits for a
    /// slot.
    pub fn pause(&self, pauses: bool) {
        let mut state = self.shared.state.lock();
        state.is_paused = pauses;
        state.is_asked = false;
        self.shared.changed.notify_all();
    }

    /// Returns the statistics so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.state.lock().statistics.clone()
    }

    /// Ends the ring: a [`put`](Ring::put) that waits for a slot returns `None`, and so does every later one. Batches that
    /// were put stay valid as long as their tickets and leases exist.
    ///
    /// # Ordering
    /// Blocks the host until the uses of the free slots are complete, and frees their memory. The memory of a leased slot is
    /// freed when the lease ends, without blocking. In a host function, which may not wait for the device, this does
    /// not block: the memory is freed on another thread. A ring of [`Spares`] returns its memory there, and does not
    /// block.
    pub fn close(&self) {
        if !self.shared.is_this_process() {
            return;
        }
        let (free, retired) = self.shared.close();
        // A running put has ended once this lock is acquired.
        let filling = std::mem::take(&mut *self.filling.lock());
        self.shared.state.lock().statistics.pinned_bytes = 0;
        let left = Kept::of(free, filling.staging, filling.worker);
        if self.shared.has_spares() {
            self.shared.leave(left);
            drop_elsewhere(Box::new(retired));
        } else {
            outside_callbacks(move || drop((left, retired)))
        }
    }

    /// Refuses a call in a child of a fork, which has neither the threads nor the device.
    fn refuse_child(&self, call: &'static str) -> Result<()> {
        if self.shared.is_this_process() {
            Ok(())
        } else {
            Err(invalid(
                call,
                "the ring belongs to the parent of this forked process; make a new one here",
            ))
        }
    }
}

impl Drop for Ring {
    /// Never blocks: memory in use is freed on another thread.
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
    /// Returns the pinned memory whose last copy is the oldest, and the maximum size to which it may grow, which is
    /// enough for `bytes`.
    #[track_caller]
    fn next_of(&mut self, shared: &Shared, bytes: u64) -> Result<(&mut Staging, u64)> {
        let most_bytes = self.most_bytes.unwrap_or(u64::MAX);
        if bytes > most_bytes {
            let why = format!(
                "a batch of {} does not fit into {} of pinned memory (max_pinned, limit_pinned); raise the limit, give more, \
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
            // There is room for this one only: the others are freed once their copies are complete.
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
    /// Hands the batch over for work on this stream, which waits for the copy.
    ///
    /// # Ordering
    /// The consumer's stream waits for the copy. Does not block the host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was handed over before, or the stream is being captured; or an error of the driver. The ticket
    /// then stays unchanged.
    #[track_caller]
    pub fn hand_over(&self, consumer: &Stream) -> Result<Lease> {
        self.shared.device.runtime.check()?;
        let mut held = self.slot.lock();
        if held.is_none() {
            return Err(invalid(
                "hand_over",
                "the batch was handed over before; each batch has one lease",
            ));
        }
        if consumer.is_captured() {
            return Err(invalid(
                "hand_over",
                "the stream is being captured, or is the legacy stream during a capture, and the copy is outside \
                 the capture; take the batch before the capture begins",
            ));
        }
        consumer.wait(&self.uploaded)?;
        let Some(slot) = held.take() else {
            unreachable!("its presence was checked above, under the lock")
        };
        self.shared.handed_over();
        let (shared, layout) = (Arc::clone(&self.shared), Arc::clone(&self.layout));
        Ok(Lease::new(shared, slot, layout, consumer))
    }

    /// Blocks until the memory of the [direct](Leaf::direct) leaves was read. Returns at once if there are none.
    ///
    /// # Ordering
    /// Blocks the host.
    ///
    /// # Errors
    /// An error of the device.
    #[track_caller]
    pub fn wait_source(&self) -> Result<()> {
        if self.is_direct {
            let _beside = BesideCaptures::on(&*self.shared.device.runtime.backend);
            self.uploaded.synchronize()
        } else {
            Ok(())
        }
    }

    /// Whether [`Ticket::wait_source`] would return at once.
    ///
    /// # Errors
    /// An error of the device.
    #[track_caller]
    pub fn is_source_free(&self) -> Result<bool> {
        if self.is_direct {
            let _beside = BesideCaptures::on(&*self.shared.device.runtime.backend);
            self.uploaded.query()
        } else {
            Ok(true)
        }
    }

    /// Whether some leaves are copied directly.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(slot) = self.slot.get_mut().take() else {
            return;
        };
        if self.shared.is_this_process() {
            // The batch was not used, and the next copy is on the same stream as this one.

            self.shared.handed_over();
            self.shared.give_back(slot);
        } else {
            std::mem::forget((slot, Arc::clone(&self.shared)))
        }
    }
}

/// The layout of the leaves of a batch in a slot.
struct Plan {
    /// By leaf: its offset in the slot, and its size in bytes.
    layout: Vec<(u64, u64)>,
    /// The size of the packed leaves, which come first, so that they are one copy.
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
                if direct {
                    plan.direct_bytes += leaf.bytes
                } else {
                    plan.staged_bytes = end
                }
                // On overflow the size is larger than any memory, and the allocation fails.
                plan.total_bytes = end.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(end);
            }
        }
        plan
    }

    fn is_direct(&self) -> bool {
        self.direct_bytes > 0
    }

    /// Returns the copies that pack the leaves into memory at `to`.
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
