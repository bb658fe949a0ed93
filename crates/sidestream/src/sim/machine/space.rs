//! The memory of a simulated machine: addresses and their bytes.
//!
//! Device memory has addresses that no host pointer can have; host memory for its bytes is allocated when they
//! are first written. Pinned memory is memory of this process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ptr;

use crate::backend::shared;
use crate::backend::{Address, Copy};
use crate::error::OutOfMemory;
use crate::op::{DeviceId, Memory};

/// The first address of device memory, beyond every pointer of a process.
const DEVICES: u64 = 1 << 58;
/// The size of a device's address range. Addresses are not reused, so that an access past the end of an
/// allocation is found.
const DEVICE_BYTES: u64 = 1 << 52;
/// The alignment of device allocations, as on NVIDIA devices.
const ALIGN_BYTES: u64 = 512;
/// The unit in which host memory is allocated for device memory.
const CHUNK_BYTES: usize = 256 << 10;
/// The alignment of pinned memory: a cache line, which is enough for any plain type.
const PINNED_ALIGN: usize = 64;

/// All memory of a machine.
#[derive(Debug)]
pub(super) struct Space {
    devices: Vec<DeviceSpace>,
    /// The allocations of device memory, by first address.
    segments: BTreeMap<u64, Segment>,
    /// The pinned allocations by first address, which is up to one alignment past the start of the host allocation.
    pinned: BTreeMap<u64, (u64, Layout)>,
    /// The registered memory of the program: its size in bytes, by first address.
    registered: BTreeMap<u64, u64>,
    /// Memory freed while work was pending: the first task that cannot use it, and its address.
    leaving: VecDeque<(u64, Address)>,
    pub(super) access: HostAccess,
}

/// How host memory is read and written: each returns whether it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostAccess {
    pub load: unsafe fn(u64, &mut [u8]) -> bool,
    pub store: unsafe fn(u64, &[u8]) -> bool,
}

#[derive(Debug)]
struct DeviceSpace {
    next: u64,
    reserved_bytes: u64,
    limit_bytes: u64,
}

#[derive(Debug)]
struct Segment {
    len: u64,
    /// The chunks, each allocated at its first write; empty before the first write to any.
    chunks: Vec<Option<Box<[u8]>>>,
}

/// The host memory that an operation may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Host {
    /// Only pinned memory.
    Pinned,
    /// Any memory that the caller names.
    Any,
}

impl Host {
    /// Returns the host memory that a copy may access on a side with this kind of memory.
    pub(super) fn of(memory: Memory) -> Host {
        match memory {
            Memory::Pageable => Host::Any,
            Memory::Device | Memory::Pinned | Memory::Managed => Host::Pinned,
        }
    }
}

/// An access outside all allocated memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Illegal {
    at: Address,
    bytes: u64,
    wrote: bool,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.wrote { "wrote" } else { "read" };
        let Illegal { at, bytes, .. } = self;
        write!(
            f,
            "illegal address: it {verb} {bytes} bytes at {:#x}, outside all allocated memory",
            at.0
        )
    }
}

// ------------------------------------------------------------------ allocating and freeing

impl Space {
    /// Returns a space without allocations; `limits` are the sizes of device memory.
    pub(super) fn new(limits: impl Iterator<Item = u64>) -> Space {
        let device = |(at, limit_bytes): (usize, u64)| DeviceSpace {
            next: DEVICES + at as u64 * DEVICE_BYTES,
            reserved_bytes: 0,
            limit_bytes,
        };
        Space {
            devices: limits.enumerate().map(device).collect(),
            segments: BTreeMap::new(),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            leaving: VecDeque::new(),
            access: HostAccess { load, store },
        }
    }

    /// Allocates memory: of a device, or of this process for any other kind of memory.
    pub(super) fn reserve(
        &mut self,
        memory: Memory,
        device: DeviceId,
        bytes: u64,
    ) -> Result<Address, OutOfMemory> {
        match memory {
            Memory::Device => self.reserve_device(device, bytes),
            Memory::Pinned | Memory::Managed | Memory::Pageable => self.reserve_host(bytes),
        }
    }

    /// Whether the next allocation would start at this address.
    pub(super) fn would_be_at(&self, memory: Memory, device: DeviceId, at: Address) -> bool {
        memory == Memory::Device && self.devices[device.0 as usize].next == at.0
    }

    fn reserve_device(&mut self, device: DeviceId, bytes: u64) -> Result<Address, OutOfMemory> {
        let space = &mut self.devices[device.0 as usize];
        let full = OutOfMemory {
            device: Some(device),
            asked_bytes: bytes,
            allocated_bytes: space.reserved_bytes,
            reserved_bytes: space.reserved_bytes,
            limit_bytes: space.limit_bytes,
        };
        let reserved_bytes = space.reserved_bytes.checked_add(bytes).ok_or(full)?;
        let end_of_space = DEVICES + (u64::from(device.0) + 1) * DEVICE_BYTES;
        let taken = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        if reserved_bytes > space.limit_bytes || taken > end_of_space - space.next {
            return Err(full);
        }
        let start = space.next;
        space.next += taken;
        space.reserved_bytes = reserved_bytes;
        let segment = Segment {
            len: bytes,
            chunks: Vec::new(),
        };
        self.segments.insert(start, segment);
        Ok(Address(start))
    }

    fn reserve_host(&mut self, bytes: u64) -> Result<Address, OutOfMemory> {
        let full = OutOfMemory {
            device: None,
            asked_bytes: bytes,
            allocated_bytes: 0,
            reserved_bytes: 0,
            limit_bytes: 0,
        };
        let size = usize::try_from(bytes.max(1)).map_err(|_| full)?;
        // With ordinary alignment the system returns zero pages untouched; with a larger one they
        // are written, which commits pages that may never be used.
        let room = size.checked_add(PINNED_ALIGN).ok_or(full)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| full)?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(full);
        }
        let base = base.expose_provenance() as u64;
        let start = base.next_multiple_of(PINNED_ALIGN as u64);
        self.pinned.insert(start, (base, layout));
        Ok(Address(start))
    }

    /// Frees memory. Its bytes stay valid until all tasks before `unused_from` have finished.
    pub(super) fn unreserve(&mut self, at: Address, unused_from: u64) {
        if let Some(segment) = self.segments.get(&at.0) {
            let device = (at.0 - DEVICES) / DEVICE_BYTES;
            self.devices[device as usize].reserved_bytes -= segment.len;
        }
        self.leaving.push_back((unused_from, at));
    }

    /// Releases the memory that only tasks before this one could use; all of them have finished.
    pub(super) fn settle(&mut self, first_unfinished: u64) {
        while let Some(&(unused_from, at)) = self.leaving.front()
            && unused_from <= first_unfinished
        {
            self.leaving.pop_front();
            self.segments.remove(&at.0);
            if let Some((base, layout)) = self.pinned.remove(&at.0) {
                free(base, layout);
            }
        }
    }

    /// Registers memory of the program as pinned. Returns false if some of it is pinned already.
    pub(super) fn register(&mut self, at: Address, bytes: u64) -> bool {
        let end = at.0.saturating_add(bytes);
        let of_program = self.registered.range(..end).next_back();
        let overlaps = of_program.is_some_and(|(&start, &len)| start + len > at.0);
        let reserved = self.pinned.range(..end).next_back();
        let is_reserved = reserved.is_some_and(|(&start, (_, layout))| start + room(layout) > at.0);
        if overlaps || is_reserved {
            return false;
        }
        self.registered.insert(at.0, bytes);
        true
    }

    /// Unregisters memory of the program.
    pub(super) fn unregister(&mut self, at: Address) {
        self.registered.remove(&at.0);
    }

    /// Returns the device of an address.
    pub(super) fn device_of(&self, at: Address) -> Option<DeviceId> {
        let device = at.0.checked_sub(DEVICES)? / DEVICE_BYTES;
        Some(DeviceId(device as u32))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for &(base, layout) in self.pinned.values() {
            free(base, layout);
        }
    }
}

unsafe fn load(at: u64, into: &mut [u8]) -> bool {
    // SAFETY: the caller promises this.
    unsafe { shared::load(at, into) };
    true
}

unsafe fn store(at: u64, bytes: &[u8]) -> bool {
    // SAFETY: the caller promises this.
    unsafe { shared::store(at, bytes) };
    true
}

fn free(base: u64, layout: Layout) {
    // SAFETY: `reserve_host` allocated it with this layout, and it was in the table until now, so
    // it was not freed before. No task that could use it is left.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(base as usize), layout) }
}

// ------------------------------------------------------------------ bytes

impl Space {
    /// Reads the source of a copy, row after row.
    pub(super) fn gather(&self, copy: &Copy, host: Host) -> Result<Vec<u8>, Illegal> {
        let row = copy.row_bytes as usize;
        let mut bytes = vec![0; row * copy.rows as usize];
        for (n, into) in (0..copy.rows).zip(bytes.chunks_exact_mut(row.max(1))) {
            self.read(copy.from.offset(n * copy.from_pitch), into, host)?;
        }
        Ok(bytes)
    }

    /// Writes the destination of a copy.
    pub(super) fn scatter(&mut self, copy: &Copy, bytes: &[u8], host: Host) -> Result<(), Illegal> {
        let rows = bytes.chunks_exact((copy.row_bytes as usize).max(1));
        for (n, row) in (0..copy.rows).zip(rows) {
            self.write(copy.to.offset(n * copy.to_pitch), row, host)?;
        }
        Ok(())
    }

    /// Reads bytes.
    pub(super) fn read(&self, at: Address, into: &mut [u8], host: Host) -> Result<(), Illegal> {
        let illegal = Illegal {
            at,
            bytes: into.len() as u64,
            wrote: false,
        };
        if at.0 < DEVICES {
            self.check_host(at, into.len(), host).ok_or(illegal)?;
            // SAFETY: see `check_host`.
            let is_read = unsafe { (self.access.load)(at.0, into) };
            return is_read.then_some(()).ok_or(illegal);
        }
        let mut done = 0;
        while done < into.len() {
            let (start, segment) = self.segment(at.offset(done as u64)).ok_or(illegal)?;
            let within = at.0 + done as u64 - start;
            let len = (into.len() - done).min((segment.len - within) as usize);
            segment.load(within as usize, &mut into[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Writes bytes: all of them, or none if some cannot be written.
    pub(super) fn write(&mut self, at: Address, bytes: &[u8], host: Host) -> Result<(), Illegal> {
        let illegal = Illegal {
            at,
            bytes: bytes.len() as u64,
            wrote: true,
        };
        if at.0 < DEVICES {
            self.check_host(at, bytes.len(), host).ok_or(illegal)?;
            // SAFETY: see `check_host`.
            let is_written = unsafe { (self.access.store)(at.0, bytes) };
            return is_written.then_some(()).ok_or(illegal);
        }
        let mut done = 0;
        while done < bytes.len() {
            let (start, segment) = self.segment(at.offset(done as u64)).ok_or(illegal)?;
            done += (segment.len - (at.0 + done as u64 - start)) as usize;
        }
        let mut done = 0;
        while done < bytes.len() {
            let next = at.0 + done as u64;
            let Some((&start, segment)) = self.segments.range_mut(..=next).next_back() else {
                return Err(illegal);
            };
            let within = next - start;
            let len = (bytes.len() - done).min((segment.len - within) as usize);
            segment.store(within as usize, &bytes[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Returns the allocation that contains an address, and its first address.
    fn segment(&self, at: Address) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.segments.range(..=at.0).next_back()?;
        (at.0 - start < segment.len).then_some((start, segment))
    }

    /// Returns `Some` if host memory may be accessed; the memory is then valid. Pinned memory is in the table as long
    /// as it is allocated, and this is called under the lock under which it is freed. For registered and pageable
    /// memory, the caller who submitted the operation guarantees that it stays valid until the operation is complete.
    fn check_host(&self, at: Address, len: usize, host: Host) -> Option<()> {
        if host == Host::Any || len == 0 {
            return Some(());
        }
        let end = at.0.checked_add(len as u64)?;
        let reserved = self.pinned.range(..=at.0).next_back();
        let reserved = reserved.map(|(&start, (_, layout))| start + room(layout));
        let of_program = self.registered.range(..=at.0).next_back();
        let of_program = of_program.map(|(&start, &len)| start + len);
        (end <= reserved.max(of_program)?).then_some(())
    }
}

/// Returns the usable size of an allocation.
fn room(layout: &Layout) -> u64 {
    (layout.size() - PINNED_ALIGN) as u64
}

impl Segment {
    fn load(&self, at: usize, into: &mut [u8]) {
        each_chunk(at, into.len(), |chunk, within, part| {
            let into = &mut into[part];
            match self.chunks.get(chunk) {
                Some(Some(bytes)) => into.copy_from_slice(&bytes[within..within + into.len()]),
                _ => into.fill(0),
            }
        });
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        if self.chunks.is_empty() {
            let chunks = (self.len as usize).div_ceil(CHUNK_BYTES);
            self.chunks.resize_with(chunks, || None);
        }
        each_chunk(at, bytes.len(), |chunk, within, part| {
            let bytes = &bytes[part];
            let size = CHUNK_BYTES.min(self.len as usize - chunk * CHUNK_BYTES);
            let chunk = self.chunks[chunk].get_or_insert_with(|| vec![0; size].into());
            chunk[within..within + bytes.len()].copy_from_slice(bytes);
        });
    }
}

/// Splits a range into chunks: calls `each` with the number of a chunk, the first byte in it, and the part of the
/// range.
fn each_chunk(at: usize, len: usize, mut each: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let within = (at + done) % CHUNK_BYTES;
        let part = (len - done).min(CHUNK_BYTES - within);
        each((at + done) / CHUNK_BYTES, within, done..done + part);
        done += part;
    }
}
