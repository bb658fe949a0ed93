//! Memory: the owners of addresses, and the calls that allocate, free, copy and fill it.

use std::collections::{BTreeMap, HashSet};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestream::backend::{Address, Backend, Copy, Fill, Payload, Reserve};
use sidestream::cuda::driver::{CuAddress, CuStream, EVENT_DISABLE_TIMING, MemsetNode};
use sidestream::op::{DeviceId, Kind, Memory as Place, SourceOrder};

use crate::codes::{
    Answer, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY,
    STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::state::{Here, State};
use crate::streams;

/// Allocated and registered memory, by first address.
#[derive(Default)]
pub struct Memory(BTreeMap<CuAddress, Allocation>);

#[derive(Clone, Copy)]
struct Allocation {
    bytes: u64,
    of: Of,
    /// The machine's address of it.
    base: Address,
}

/// The origin of an allocation, which determines how it is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Device(DeviceId),
    /// `cuMemAllocAsync`.
    Stream(DeviceId),
    Host(DeviceId),
    /// Memory of the program that was registered.
    Program(DeviceId),
}

/// First address of device memory; no process has memory there.
const DEVICES: CuAddress = 1 << 58;
/// No process has memory below this address either.
const LOWEST: CuAddress = 1 << 16;

// ------------------------------------------------------------------ which addresses are whose

impl Memory {
    /// Returns the kind of memory of some bytes. Bytes that are on no device and were never pinned count as pageable
    /// memory, as in the driver.
    pub fn place(&self, at: CuAddress, bytes: u64) -> Answer<Place> {
        let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let before = self.0.range(..end.max(at.saturating_add(1))).next_back();
        let touched = before.filter(|&(&start, known)| start + known.bytes > at);
        match touched {
            Some((&start, known)) if start <= at && end <= start + known.bytes => {
                Ok(match known.of {
                    Of::Device(_) | Of::Stream(_) => Place::Device,
                    Of::Host(_) | Of::Program(_) => Place::Pinned,
                })
            }
            // The range begins or ends in an allocation that does not contain all of it.
            Some(_) => Err(INVALID_VALUE),
            None if at < LOWEST || end > DEVICES => Err(INVALID_VALUE),
            None => Ok(Place::Pageable),
        }
    }

    /// Returns the first address of a range that a kernel cannot access, if there is one, and whether memory exists
    /// there.
    pub fn missing(
        &self,
        at: CuAddress,
        bytes: u64,
        reach: &Reach<'_>,
    ) -> Option<(CuAddress, bool)> {
        let Some(end) = at.checked_add(bytes) else {
            return Some((at, false));
        };
        let mut next = at;
        while next < end {
            let found = self.0.range(..=next).next_back();
            let found = found.filter(|&(&start, known)| next < start + known.bytes);
            match found {
                Some((&start, known)) if reach.has(known.of) => next = start + known.bytes,
                found => return Some((next, found.is_some())),
            }
        }
        None
    }

    /// Returns the current words of pinned memory.
    pub fn words(&self, at: CuAddress, count: u64) -> Option<Vec<u64>> {
        let bytes = count.checked_mul(8)?;
        if !at.is_multiple_of(8) || self.place(at, bytes) != Ok(Place::Pinned) {
            return None;
        }
        let word = |n: u64| {
            let word = ptr::with_exposed_provenance_mut::<u64>((at + n * 8) as usize);
            // SAFETY: pinned memory lives until it is freed or unregistered, which takes the lock of the tables; for
            // the program's own memory, the program promises it to the driver. The address is aligned, and the access
            // is atomic.
            unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed)
        };
        Some((0..count).map(word).collect())
    }

    /// Returns the number of bytes allocated on a device.
    pub fn taken_bytes(&self, device: DeviceId) -> u64 {
        let all = self.0.values();
        let here =
            all.filter(|known| known.of == Of::Device(device) || known.of == Of::Stream(device));
        here.map(|known| known.bytes).sum()
    }

    fn add(&mut self, base: Address, bytes: u64, of: Of) -> CuAddress {
        let at = match of {
            Of::Host(_) => base.0.next_multiple_of(PAGE),
            _ => base.0,
        };
        self.0.insert(at, Allocation { bytes, of, base });
        at
    }

    /// Returns the origin of the allocation that begins exactly here.
    fn at(&self, at: CuAddress) -> Answer<Of> {
        self.0.get(&at).map(|known| known.of).ok_or(INVALID_VALUE)
    }
}

/// The memory that a kernel on a device can access.
pub struct Reach<'a> {
    pub device: DeviceId,
    pub peers: &'a HashSet<(DeviceId, DeviceId)>,
}

impl Reach<'_> {
    fn has(&self, of: Of) -> bool {
        match of {
            Of::Device(owner) | Of::Stream(owner) => {
                owner == self.device || self.peers.contains(&(self.device, owner))
            }
            Of::Host(_) | Of::Program(_) => true,
        }
    }
}

// ------------------------------------------------------------------ taking and giving back

/// `cuMemGetInfo`: free bytes, all bytes.
pub fn info(state: &State, here: Here) -> Answer<(usize, usize)> {
    let device = here.device()?;
    let all = state.machine.devices()[device.0 as usize].memory_bytes;
    let taken = state.tables().memory.taken_bytes(device);
    Ok((all.saturating_sub(taken) as usize, all as usize))
}

pub fn alloc(state: &State, here: Here, bytes: usize) -> Answer<CuAddress> {
    let device = here.device()?;
    take(state, here, bytes, Place::Device, Of::Device(device))
}

pub fn alloc_host(state: &State, here: Here, bytes: usize, flags: u32) -> Answer<u64> {
    // Portable, mapped, write-combined.
    if flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    take(state, here, bytes, Place::Pinned, Of::Host(here.device()?))
}

pub fn alloc_async(state: &State, here: Here, bytes: usize, handle: CuStream) -> Answer<CuAddress> {
    let bytes = bytes as u64;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let stream = streams::stream(state, here, handle)?;
    let device = stream.device;
    let at = reserve(state, Place::Device, device, bytes)?;
    let kind = Kind::MallocAsync { stream: stream.id };
    if let Err(code) = streams::submit(state, here.thread, kind, Payload::None) {
        state.unreserve(Place::Device, device, at);
        return Err(code);
    }
    Ok(state.tables().memory.add(at, bytes, Of::Stream(device)))
}

fn take(state: &State, here: Here, bytes: usize, place: Place, of: Of) -> Answer<CuAddress> {
    let bytes = bytes as u64;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    state.tables().captures.refuse_unsafe(here.thread)?;
    // Pinned memory has whole pages, as the driver's has: a program may protect them.
    let room = match place {
        Place::Pinned => bytes.saturating_add(2 * PAGE - 1),
        _ => bytes,
    };
    let base = reserve(state, place, here.device()?, room)?;
    Ok(state.tables().memory.add(base, bytes, of))
}

fn reserve(state: &State, place: Place, device: DeviceId, bytes: u64) -> Answer<Address> {
    // More memory than any machine has: the host's own allocator would be asked for it.
    if place != Place::Device && bytes > HOST_BYTES {
        return Err(OUT_OF_MEMORY);
    }
    state.code(state.machine.reserve(Reserve::new(place, device, bytes)))
}

/// The maximum size of a pinned allocation.
const HOST_BYTES: u64 = 1 << 40;
/// The size of a page of the host.
const PAGE: u64 = 4096;

/// Frees memory of a device, or pinned memory.
pub fn free(state: &State, here: Here, at: CuAddress, place: Place) -> Answer<()> {
    if at == 0 {
        return Ok(());
    }
    let of = state.tables().memory.at(at)?;
    let device = match (of, place) {
        (Of::Device(device) | Of::Stream(device), Place::Device) => device,
        (Of::Host(device), Place::Pinned) => device,
        _ => return Err(INVALID_VALUE),
    };
    state.tables().captures.refuse_unsafe(here.thread)?;
    if !matches!(of, Of::Stream(_)) {
        wait_for_device(state, here, device)?;
    }
    give_back(state, at, place, device)
}

pub fn free_async(state: &State, here: Here, at: CuAddress, handle: CuStream) -> Answer<()> {
    let stream = streams::stream(state, here, handle)?.id;
    let (Of::Stream(device) | Of::Device(device)) = state.tables().memory.at(at)? else {
        return Err(INVALID_VALUE);
    };
    let kind = Kind::FreeAsync { stream };
    streams::submit(state, here.thread, kind, Payload::None)?;
    give_back(state, at, Place::Device, device)
}

fn give_back(state: &State, at: CuAddress, place: Place, device: DeviceId) -> Answer<()> {
    // A second free of the same address finds no allocation.
    let removed = state.tables().memory.0.remove(&at).ok_or(INVALID_VALUE)?;
    state.unreserve(place, device, removed.base);
    Ok(())
}

/// Waits for the device: real frees were observed to do so, although it is not guaranteed.
fn wait_for_device(state: &State, here: Here, device: DeviceId) -> Answer<()> {
    if !state.as_observed() {
        return Ok(());
    }
    let device = Some(device);
    match state.wait(here.thread, Kind::SyncDevice { device }) {
        // The captures allow this thread the call: then it succeeds, although a wait for the device would not.
        Err(STREAM_CAPTURE_UNSUPPORTED | STREAM_CAPTURE_IMPLICIT) => Ok(()),
        waited => state.tables().captures.judge(waited),
    }
}

/// Pins memory of the program.
///
/// # Safety
/// The memory exists until it is unregistered.
pub unsafe fn register(
    state: &State,
    here: Here,
    at: CuAddress,
    bytes: usize,
    flags: u32,
) -> Answer<()> {
    let bytes = bytes as u64;
    let device = here.device()?;
    let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if bytes == 0 || at < LOWEST || end > DEVICES || flags & !0xf != 0 {
        return Err(INVALID_VALUE);
    }
    let mut tables = state.tables();
    tables.captures.refuse_unsafe(here.thread)?;
    let before = tables.memory.0.range(..end).next_back();
    let touched = before.filter(|&(&start, known)| start + known.bytes > at);
    if touched.is_some_and(|(_, known)| !matches!(known.of, Of::Program(_))) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller promises it.
    state.code(unsafe { state.machine.register(Address(at), bytes) })?;
    tables.memory.add(Address(at), bytes, Of::Program(device));
    Ok(())
}

pub fn unregister(state: &State, here: Here, at: CuAddress) -> Answer<()> {
    let Ok(Of::Program(device)) = state.tables().memory.at(at) else {
        return Err(HOST_MEMORY_NOT_REGISTERED);
    };
    state.tables().captures.refuse_unsafe(here.thread)?;
    wait_for_device(state, here, device)?;
    let removed = state.tables().memory.0.remove(&at);
    removed.ok_or(HOST_MEMORY_NOT_REGISTERED)?;
    // SAFETY: the address was in the table of registered memory. Its uses have completed, as the driver requires of its
    // callers.
    unsafe { state.machine.unregister(Address(at)) };
    Ok(())
}

// ------------------------------------------------------------------ copies and fills

/// Returns the kind of memory of one side of a copy, whose whole range is checked.
pub fn side(memory: &Memory, at: Address, copy: &Copy, pitch: u64) -> Answer<Place> {
    let rows = copy.rows.saturating_sub(1);
    let rest = rows.checked_mul(pitch).ok_or(INVALID_VALUE)?;
    let bytes = rest.checked_add(copy.row_bytes).ok_or(INVALID_VALUE)?;
    memory.place(at.0, bytes)
}

/// Returns the kinds of memory of both sides of a copy.
pub fn sides(memory: &Memory, copy: &Copy) -> Answer<(Place, Place)> {
    let from = side(memory, copy.from, copy, copy.from_pitch)?;
    Ok((from, side(memory, copy.to, copy, copy.to_pitch)?))
}

/// Returns a copy of one row.
pub fn row(to: CuAddress, from: CuAddress, bytes: usize) -> Copy {
    Copy {
        from: Address(from),
        to: Address(to),
        row_bytes: bytes as u64,
        rows: 1,
        from_pitch: bytes as u64,
        to_pitch: bytes as u64,
    }
}

/// Returns the address by which devices access pinned memory: the host's.
pub fn mapped(state: &State, at: CuAddress) -> Answer<CuAddress> {
    match state.tables().memory.place(at, 1)? {
        Place::Pinned => Ok(at),
        _ => Err(INVALID_VALUE),
    }
}

pub fn copy_blocking(state: &State, here: Here, copy: Copy) -> Answer<()> {
    if copy.row_bytes == 0 {
        return Ok(());
    }
    let (from, to) = sides(&state.tables().memory, &copy)?;
    state.tell_device(here)?;
    let kind = Kind::CopyBlocking { from, to };
    streams::submit(state, here.thread, kind, Payload::Copy(copy))
}

/// Copies in stream order. A copy of a batch says when it reads its source, by `CUmemcpySrcAccessOrder`: one that may
/// read at any time reads in stream order.
pub fn copy(
    state: &State,
    here: Here,
    copies: &[Copy],
    order: Option<u32>,
    handle: CuStream,
) -> Answer<()> {
    let source = match order {
        None => None,
        Some(1 | 3) => Some(SourceOrder::Stream),
        Some(2) => Some(SourceOrder::DuringCall),
        Some(_) => return Err(INVALID_VALUE),
    };
    let stream = streams::stream(state, here, handle)?.id;
    for &copy in copies {
        let (from, to) = sides(&state.tables().memory, &copy)?;
        let kind = match source {
            None => Kind::Copy { stream, from, to },
            Some(source) => Kind::CopyBatch {
                stream,
                from,
                to,
                source,
            },
        };
        streams::submit(state, here.thread, kind, Payload::Copy(copy))?;
    }
    Ok(())
}

/// Returns a checked fill of `count` elements.
pub fn fill_of(
    memory: &Memory,
    at: CuAddress,
    value: u32,
    width: u8,
    count: usize,
) -> Answer<(Fill, Place)> {
    let count = count as u64;
    let bytes = count.checked_mul(width.into()).ok_or(INVALID_VALUE)?;
    if !at.is_multiple_of(width.into()) {
        return Err(INVALID_VALUE);
    }
    let place = memory.place(at, bytes)?;
    if place == Place::Pageable {
        return Err(INVALID_VALUE);
    }
    let fill = Fill {
        at: Address(at),
        value,
        width,
        count,
    };
    Ok((fill, place))
}

pub fn fill_blocking(
    state: &State,
    here: Here,
    (at, value, width, count): (CuAddress, u32, u8, usize),
) -> Answer<()> {
    let (fill, to) = fill_of(&state.tables().memory, at, value, width, count)?;
    if count == 0 {
        return Ok(());
    }
    state.tell_device(here)?;
    let kind = Kind::MemsetBlocking { to };
    streams::submit(state, here.thread, kind, Payload::Fill(fill))
}

pub fn fill(
    state: &State,
    here: Here,
    (at, value, width, count): (CuAddress, u32, u8, usize),
    handle: CuStream,
) -> Answer<()> {
    let stream = streams::stream(state, here, handle)?.id;
    let (fill, _) = fill_of(&state.tables().memory, at, value, width, count)?;
    if count == 0 {
        return Ok(());
    }
    streams::submit(
        state,
        here.thread,
        Kind::Memset { stream },
        Payload::Fill(fill),
    )
}

/// Writes a value for which other streams wait: the machine knows only events.
pub fn write_value(
    state: &State,
    here: Here,
    at: CuAddress,
    value: u32,
    handle: CuStream,
) -> Answer<()> {
    fill(state, here, (at, value, 4, 1), handle)?;
    let event = streams::create_event(state, here, EVENT_DISABLE_TIMING)?;
    streams::record(state, here, event, handle)?;
    let earlier = state.tables().values.insert(at, (value, event));
    earlier.map_or(Ok(()), |(_, event)| streams::destroy_event(state, event))
}

/// Waits until a value is written. The write has to be submitted before.
pub fn wait_value(
    state: &State,
    here: Here,
    (at, value): (CuAddress, u32),
    flags: u32,
    handle: CuStream,
) -> Answer<()> {
    let written = state.tables().values.get(&at).copied();
    let (last, event) = written.ok_or(NOT_SUPPORTED)?;
    // `CU_STREAM_WAIT_VALUE_GEQ`, which is cyclic, and `CU_STREAM_WAIT_VALUE_EQ`.
    match flags {
        0 if last.wrapping_sub(value) as i32 >= 0 => {}
        1 if last == value => {}
        _ => return Err(NOT_SUPPORTED),
    }
    streams::wait_event(state, here, handle, event, 0)
}

/// Returns the rows of a node that fills memory.
pub fn fills(state: &State, of: &MemsetNode) -> Answer<Vec<Fill>> {
    let width = match of.element_bytes {
        1 | 2 | 4 => of.element_bytes as u8,
        _ => return Err(INVALID_VALUE),
    };
    if of.width == 0 || of.height == 0 || of.height > MOST_ROWS {
        return Err(INVALID_VALUE);
    }
    let row_bytes = of
        .width
        .checked_mul(usize::from(width))
        .ok_or(INVALID_VALUE)?;
    if of.height > 1 && of.pitch < row_bytes {
        return Err(INVALID_VALUE);
    }
    let tables = state.tables();
    let row = |row: usize| {
        let offset = row.checked_mul(of.pitch).ok_or(INVALID_VALUE)?;
        let at = of.dst.checked_add(offset as u64).ok_or(INVALID_VALUE)?;
        fill_of(&tables.memory, at, of.value, width, of.width).map(|(fill, _)| fill)
    };
    (0..of.height).map(row).collect()
}

/// Maximum number of rows, each of which becomes a node of its own here.
const MOST_ROWS: usize = 65_536;
