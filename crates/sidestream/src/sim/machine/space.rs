//! The memory of a simulated machine: addresses, and the bytes behind them.
//!
//! A device's memory has addresses of its own, which no host pointer can have; its bytes are taken
//! from this machine when they are first written. Pinned memory is memory of this process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ptr;

use crate::backend::shared::{load, store};
use crate::backend::{Address, Copy};
use crate::error::OutOfMemory;
use crate::op::{DeviceId, Memory};

/// No pointer of a process lies here.
const DEVICES: u64 = 1 << 58;
/// The addresses that a device has: they are not given out twice, so that an access after the end
/// of its memory is found.
const DEVICE_BYTES: u64 = 1 << 52;
/// Device memory begins at a multiple of this, as on NVIDIA's.
const ALIGN_BYTES: u64 = 512;
/// How much device memory is taken from this machine at once.
const CHUNK_BYTES: usize = 256 << 10;
/// A cache line, and enough for any plain type.
const PINNED_ALIGN: usize = 64;

/// All memory of a machine.
#[derive(Debug)]
pub(super) struct Space {
    devices: Vec<DeviceSpace>,
    /// By first address.
    segments: BTreeMap<u64, Segment>,
    /// By first address, which lies up to an alignment behind that of the allocation.
    pinned: BTreeMap<u64, (u64, Layout)>,
    /// Memory of the program that was pinned: by first address, how long.
    registered: BTreeMap<u64, u64>,
    /// Given back while work was unfinished: the first task that cannot be a use of it, and where
    /// it is.
    leaving: VecDeque<(u64, Address)>,
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
    /// None of them until the first write; each absent until its own.
    chunks: Vec<Option<Box<[u8]>>>,
}

/// What host memory an operation may touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Host {
    /// Only what was reserved as pinned.
    Pinned,
    /// Whatever the caller names.
    Any,
}

impl Host {
    /// What a copy may touch on a side with this memory.
    pub(super) fn of(memory: Memory) -> Host {
        match memory {
            Memory::Pageable => Host::Any,
            Memory::Device | Memory::Pinned | Memory::Managed => Host::Pinned,
        }
    }
}

/// An access to memory that there is not.
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
            "illegal address: it {verb} {bytes} bytes at {:#x}, outside all memory that is reserved",
            at.0
        )
    }
}

// ------------------------------------------------------------------ taking and giving back

impl Space {
    /// No memory yet; the most that each device has.
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
        }
    }

    /// Memory of a device, or for every other kind of memory of this process.
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

    /// Whether the next memory to be reserved would start here.
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
        // Zeros of ordinary alignment come from the system untouched; of a larger one they are
        // written, which takes pages that may never be used.
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

    /// Takes memory back. It stays where it is until all tasks before `unused_from` are over.
    pub(super) fn unreserve(&mut self, at: Address, unused_from: u64) {
        if let Some(segment) = self.segments.get(&at.0) {
            let device = (at.0 - DEVICES) / DEVICE_BYTES;
            self.devices[device as usize].reserved_bytes -= segment.len;
        }
        self.leaving.push_back((unused_from, at));
    }

    /// All tasks before this one are over: what only they could use goes.
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

    /// Pins memory of the program. False if some of it is pinned already.
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

    /// Unpins it.
    pub(super) fn unregister(&mut self, at: Address) {
        self.registered.remove(&at.0);
    }

    /// The device on which an address lies.
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

fn free(base: u64, layout: Layout) {
    // SAFETY: `reserve_host` allocated it with this layout, and it was in the table until now, so
    // it was not freed before. No task that could use it is left.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(base as usize), layout) }
}

// ------------------------------------------------------------------ bytes

impl Space {
    /// What a copy reads, row after row.
    pub(super) fn gather(&self, copy: &Copy, host: Host) -> Result<Vec<u8>, Illegal> {
        let row = copy.row_bytes as usize;
        let mut bytes = vec![0; row * copy.rows as usize];
        for (n, into) in (0..copy.rows).zip(bytes.chunks_exact_mut(row.max(1))) {
            self.read(copy.from.offset(n * copy.from_pitch), into, host)?;
        }
        Ok(bytes)
    }

    /// Writes what a copy has read.
    pub(super) fn scatter(&mut self, copy: &Copy, bytes: &[u8], host: Host) -> Result<(), Illegal> {
        let rows = bytes.chunks_exact((copy.row_bytes as usize).max(1));
        for (n, row) in (0..copy.rows).zip(rows) {
            self.write(copy.to.offset(n * copy.to_pitch), row, host)?;
        }
        Ok(())
    }

    /// Copies bytes out.
    pub(super) fn read(&self, at: Address, into: &mut [u8], host: Host) -> Result<(), Illegal> {
        let illegal = Illegal {
            at,
            bytes: into.len() as u64,
            wrote: false,
        };
        if at.0 < DEVICES {
            self.check_host(at, into.len(), host).ok_or(illegal)?;
            // SAFETY: see `check_host`.
            unsafe { load(at.0, into) };
            return Ok(());
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

    /// Copies bytes in. Nothing is written if some of it cannot be.
    pub(super) fn write(&mut self, at: Address, bytes: &[u8], host: Host) -> Result<(), Illegal> {
        let illegal = Illegal {
            at,
            bytes: bytes.len() as u64,
            wrote: true,
        };
        if at.0 < DEVICES {
            self.check_host(at, bytes.len(), host).ok_or(illegal)?;
            // SAFETY: see `check_host`.
            unsafe { store(at.0, bytes) };
            return Ok(());
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

    /// The segment that holds an address, and where it begins.
    fn segment(&self, at: Address) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.segments.range(..=at.0).next_back()?;
        (at.0 - start < segment.len).then_some((start, segment))
    }

    /// Whether host memory may be touched; if so it is valid. Pinned memory is in the table as long
    /// as it is allocated, and this is asked under the lock under which it is freed. Of registered
    /// and of pageable memory whoever submitted the operation has promised that it is there until that is over.
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

/// How much of an allocation can be used.
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

/// Cuts a range into chunks: for each its number, the first byte in it, and which part of the range
/// that is.
fn each_chunk(at: usize, len: usize, mut each: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let within = (at + done) % CHUNK_BYTES;
        let part = (len - done).min(CHUNK_BYTES - within);
        each((at + done) / CHUNK_BYTES, within, done..done + part);
        done += part;
    }
}
