//! Memory that the runtime does not track.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::{Address, Reserve, shared};
use crate::buffer::{Pod, Refused, within};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::{Access, Accesses, DeviceId, Kind, Memory, Mode, StreamId};
use crate::tracker::{
    Block, Freed, Kept, Place, Runtime, Untracked, Vector, as_thread, is_host_func,
    outside_callbacks, plain,
};

/// Device memory as from `cudaMalloc` or `cudaMallocAsync`: its uses are not tracked.
///
/// Dropping it is `cudaFree`; [`Stream::free_async`](super::Stream::free_async) frees it in stream order. A caller
/// that submits work with it promises that it is not freed before the work is complete.
pub struct DeviceMemory {
    pub(super) held: Held,
}

/// Host memory that devices copy from and to while the program may access it: pinned or pageable.
///
/// The program reads and writes it with [`HostMemory::read`] and [`HostMemory::write`], which copy byte by byte
/// atomically: a program that does so at the wrong time gets wrong bytes, and not undefined behaviour. Each such
/// access is in the log, so the checker can report it.
///
/// Dropping pinned memory is `cudaFreeHost`.
pub struct HostMemory {
    held: Held,
}

/// Memory, and how it is freed.
pub(super) struct Held {
    pub runtime: Arc<Runtime>,
    pub memory: Arc<Untracked>,
    /// The op that frees it; `None` if this value does not free it.
    frees: Option<Kind>,
    /// The program's own vector, if the memory is registered.
    registered: Option<Vector>,
}

/// A range of memory, for a call to read or write.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    pub(super) runtime: &'a Arc<Runtime>,
    of: Of<'a>,
    start: u64,
    end: u64,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    Untracked(&'a Arc<Untracked>),
    /// Memory of the safe API, with the mode in which it was lent.
    Lent(&'a Block, Mode),
}

// ------------------------------------------------------------------ device memory

impl DeviceMemory {
    /// `cudaMalloc`. The content is unspecified.
    ///
    /// # Ordering
    /// None: the call waits for nothing and orders nothing (R31).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], after waiting for memory that was freed in stream order.
    #[track_caller]
    pub fn malloc(device: &Device, size_bytes: u64) -> Result<DeviceMemory> {
        let frees = Kind::CudaFree {
            stream_ordered: false,
        };
        let wanted = Reserve::new(Memory::Device, device.id(), size_bytes);
        let held = Held::new(device, wanted, frees, Location::caller())?;
        held.runtime
            .tell(Kind::CudaMalloc, |_| Accesses::new(), held.memory.at);
        Ok(DeviceMemory { held })
    }

    /// Wraps device memory of another library. Dropping the value frees nothing. The log treats each such value as
    /// separate memory.
    ///
    /// # Safety
    /// The bytes are memory of this device, at this address. They stay allocated as long as the value exists, and
    /// until all work submitted with it is complete.
    #[track_caller]
    pub unsafe fn from_raw(device: &Device, address: u64, bytes: u64) -> DeviceMemory {
        let wanted = Reserve::new(Memory::Device, device.id(), bytes);
        let (runtime, address) = (&device.runtime, Address(address));
        let frees = Kind::CudaFree {
            stream_ordered: false,
        };
        let mut held = Held::of(runtime, wanted, address, frees, Location::caller());
        held.frees = None;
        DeviceMemory { held }
    }

    /// `cudaFree`, at this call instead of when it is dropped.
    ///
    /// # Ordering
    /// No ordering is guaranteed: all uses have to be ordered before the call. The driver may wait for the device.
    #[track_caller]
    pub fn free(mut self) {
        self.held.free(Location::caller(), false);
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.held.memory.size_bytes
    }

    /// Returns the whole memory as a region.
    pub fn all(&self) -> Region<'_> {
        self.held.region(..)
    }

    /// Returns a range of bytes as a region.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[track_caller]
    pub fn bytes(&self, range: impl RangeBounds<u64>) -> Region<'_> {
        self.held.region(range)
    }

    /// Returns the device on which it is allocated.
    pub(crate) fn device(&self) -> Device {
        Device::of(&self.held.runtime, self.held.memory.device)
    }
}

// ------------------------------------------------------------------ host memory

impl HostMemory {
    /// `cudaHostAlloc`: allocates page-locked memory, all zero.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[track_caller]
    pub fn pinned(device: &Device, size_bytes: u64) -> Result<HostMemory> {
        let wanted = Reserve::new(Memory::Pinned, device.id(), size_bytes);
        HostMemory::reserve(device, wanted, Location::caller())
    }

    /// `cudaHostAlloc` with `cudaHostAllocWriteCombined`: allocates page-locked memory, all zero, whose writes bypass
    /// the host's caches. Use it for data that the host writes once, from front to back, and a device reads. The host
    /// should not read it: reads are not cached and many times slower than reads of ordinary pinned memory. On the
    /// simulated GPU it is ordinary pinned memory.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::explicit::{self, DeviceMemory, HostMemory, Stream};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = Stream::non_blocking(&device, "up", 0)?;
    /// let (sent, data) = (HostMemory::write_combined(&device, 64)?, DeviceMemory::malloc(&device, 64)?);
    /// sent.write(0, &[7u8; 64]);
    /// // SAFETY: the host waits before it touches the memory again or drops it.
    /// unsafe { stream.memcpy(sent.all(), data.all())? };
    /// stream.synchronize()?;
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// As for [`HostMemory::pinned`]. The driver makes the host's writes visible to work that is submitted
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[track_caller]
    pub fn write_combined(device: &Device, size_bytes: u64) -> Result<HostMemory> {
        let wanted = Reserve {
            write_combined: true,
            ..Reserve::new(Memory::Pinned, device.id(), size_bytes)
        };
        HostMemory::reserve(device, wanted, Location::caller())
    }

    /// `cudaHostRegister`: pins memory of the program in place. [`HostMemory::into_vec`] gives it back; dropping it
    /// is `cudaHostUnregister` and frees the vector.
    ///
    /// # Ordering
    /// Does not wait for work. Pinning takes the driver time that grows with the size.
    ///
    /// # Errors
    /// The error returns the vector: [`Error::Refused`] with the driver's code 712 if some of it is already pinned,
    /// [`Error::Invalid`] in a function on the host, or any other error that the driver returns.
    #[track_caller]
    pub fn register(device: &Device, bytes: Vec<u8>) -> Result<HostMemory, Refused<Vec<u8>>> {
        let at = Location::caller();
        let runtime = &device.runtime;
        let size_bytes = bytes.len() as u64;
        let vector = Vector::of(bytes);
        let address = vector.address();
        if let Err(error) = runtime.pin(&vector, size_bytes, at) {
            // SAFETY: the memory is a vector of bytes, and it is not pinned.
            let value = Some(unsafe { vector.into_vec(size_bytes as usize) });
            return Err(Refused { error, value });
        }
        let wanted = Reserve::new(Memory::Pinned, device.id(), size_bytes);
        let mut held = Held::of(runtime, wanted, address, Kind::FreePinned, at);
        held.registered = Some(vector);
        held.runtime.tell(Kind::CudaMalloc, |_| Accesses::new(), at);
        Ok(HostMemory { held })
    }

    /// `cudaHostUnregister` of memory that [`HostMemory::register`] pinned; returns the vector.
    ///
    /// # Ordering
    /// No ordering is guaranteed: all uses have to be complete before the call, as before a drop. The driver may wait
    /// for the whole device.
    ///
    /// # Errors
    /// The error returns the memory if it was not registered, or in a function on the host. If the device is lost the
    /// memory is lost as well, because the device may still use it.
    #[track_caller]
    pub fn into_vec(mut self) -> Result<Vec<u8>, Refused<HostMemory>> {
        let at = Location::caller();
        let runtime = Arc::clone(&self.held.runtime);
        let is_registered = self.held.registered.is_some();
        if let Err(error) = runtime.may_unpin(is_registered) {
            return Err(Refused::new(error, self));
        }
        let Some(vector) = self.held.registered.take() else {
            unreachable!("memory that is not registered was refused above")
        };
        let memory = Arc::clone(&self.held.memory);
        self.held.frees = None;
        let all = |pen: &mut Pen<'_>| Accesses::from_slice(&[memory.whole(pen)]);
        runtime.tell(Kind::FreePinned, all, at);
        // SAFETY: callers that submitted work with the memory promised that the work is complete. The memory is a
        // vector of bytes, and is unpinned before it is returned.
        unsafe {
            runtime.unpin(&vector, memory.size_bytes);
            Ok(vector.into_vec(memory.size_bytes as usize))
        }
    }

    /// Wraps page-locked memory of another library, for copies from it and to it. Dropping the value frees nothing.
    /// The log treats each such value as separate memory.
    ///
    /// # Safety
    /// The bytes are page-locked, this device can access them at this address, and the host may read and write them.
    /// This stays true as long as the value exists, and until all work submitted with it is complete.
    #[track_caller]
    pub unsafe fn from_raw(device: &Device, address: u64, bytes: u64) -> HostMemory {
        let wanted = Reserve::new(Memory::Pinned, device.id(), bytes);
        let (runtime, address) = (&device.runtime, Address(address));
        let mut held = Held::of(
            runtime,
            wanted,
            address,
            Kind::FreePinned,
            Location::caller(),
        );
        held.frees = None;
        HostMemory { held }
    }

    #[track_caller]
    fn reserve(device: &Device, wanted: Reserve, at: Place) -> Result<HostMemory> {
        let held = Held::new(device, wanted, Kind::FreePinned, at)?;
        held.runtime.tell(Kind::CudaMalloc, |_| Accesses::new(), at);
        Ok(HostMemory { held })
    }

    /// Allocates pageable memory, as `malloc` does, all zero. The log records its free as a write by the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[track_caller]
    pub fn pageable(device: &Device, size_bytes: u64) -> Result<HostMemory> {
        let wanted = Reserve::new(Memory::Pageable, device.id(), size_bytes);
        let held = Held::new(device, wanted, Kind::HostAccess, Location::caller())?;
        Ok(HostMemory { held })
    }

    /// `cudaFreeHost`, at this call instead of when it is dropped.
    ///
    /// # Ordering
    /// No ordering is guaranteed: all uses have to be ordered before the call (R27).
    #[track_caller]
    pub fn free(mut self) {
        self.held.free(Location::caller(), false);
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.held.memory.size_bytes
    }

    /// Returns the whole memory as a region.
    pub fn all(&self) -> Region<'_> {
        self.held.region(..)
    }

    /// Returns a range of bytes as a region.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[track_caller]
    pub fn bytes(&self, range: impl RangeBounds<u64>) -> Region<'_> {
        self.held.region(range)
    }

    /// Copies values out of the memory, starting at byte `first_byte`.
    ///
    /// # Ordering
    /// None: it reads the current content. Within a function on the host it is not logged as an access: the function
    /// has declared what it touches.
    ///
    /// # Panics
    /// If the range is not within the memory, or in a kernel in Rust.
    #[track_caller]
    pub fn read<T: Pod>(&self, first_byte: u64, into: &mut [T]) {
        let into: &mut [u8] = bytemuck::cast_slice_mut(into);
        let region = self.touched(first_byte, into.len(), Mode::Read, Location::caller());
        // SAFETY: the region lies within the memory, which is allocated as long as `self` exists, and which the back
        // end promises to be host memory of this process.
        unsafe { shared::load(region.address(), into) };
    }

    /// Copies values into the memory, starting at byte `first_byte`.
    ///
    /// # Ordering
    /// None: work that has yet to read the old values may read the new ones. Within a function on the host as for
    /// [`HostMemory::read`].
    ///
    /// # Panics
    /// If the range is not within the memory, or in a kernel in Rust.
    #[track_caller]
    pub fn write<T: Pod>(&self, first_byte: u64, from: &[T]) {
        let from: &[u8] = bytemuck::cast_slice(from);
        let region = self.touched(first_byte, from.len(), Mode::Write, Location::caller());
        // SAFETY: as in `read`.
        unsafe { shared::store(region.address(), from) };
    }

    /// Lets a function write a range of bytes, given the address of the first one; the function may use threads of its
    /// own. The log records one write by the calling thread. Unlike [`HostMemory::write`] the function need not write
    /// atomically.
    ///
    /// # Safety
    /// No other thread and no device accesses the bytes meanwhile. The function writes no other bytes, and none after
    /// it has returned.
    ///
    /// # Panics
    /// If the range is not within the memory, or in a kernel in Rust.
    #[track_caller]
    pub unsafe fn write_by<R>(&self, bytes: Range<u64>, write: impl FnOnce(*mut u8) -> R) -> R {
        let len = bytes.end.saturating_sub(bytes.start) as usize;
        let region = self.touched(bytes.start, len, Mode::Write, Location::caller());
        write(ptr::with_exposed_provenance_mut(region.address() as usize))
    }

    /// Returns the device with which it was allocated.
    pub(crate) fn device(&self) -> Device {
        Device::of(&self.held.runtime, self.held.memory.device)
    }

    #[track_caller]
    fn touched(&self, first: u64, len: usize, mode: Mode, at: Place) -> Region<'_> {
        self.held.runtime.refuse_kernels();
        let region = self.held.region(first..first.saturating_add(len as u64));
        if !is_host_func() {
            let accesses = |pen: &mut Pen<'_>| Accesses::from_slice(&[region.access(mode, pen)]);
            region.runtime.tell(Kind::HostAccess, accesses, at);
            region.runtime.raise();
        }
        region
    }
}

// ------------------------------------------------------------------ shared by device and host memory

impl Held {
    fn new(device: &Device, wanted: Reserve, frees: Kind, at: Place) -> Result<Held> {
        let runtime = &device.runtime;
        runtime.check()?;
        let reserve = || runtime.seen(runtime.backend.reserve(wanted));
        let address = match reserve() {
            Err(Error::OutOfMemory(_)) if give_back_freed(runtime, device.id()) => reserve()?,
            reserved => reserved?,
        };
        Ok(Held::of(runtime, wanted, address, frees, at))
    }

    fn of(
        runtime: &Arc<Runtime>,
        wanted: Reserve,
        address: Address,
        frees: Kind,
        at: Place,
    ) -> Held {
        Held {
            runtime: Arc::clone(runtime),
            memory: Arc::new(Untracked {
                memory: wanted.memory,
                device: wanted.device,
                address,
                size_bytes: wanted.bytes,
                at,
                first: None,
                name: Mutex::new(None),
            }),
            frees: Some(frees),
            registered: None,
        }
    }

    /// Allocates memory in the order of a stream: memory that was freed in that stream, or new memory.
    pub(super) fn of_stream(
        device: &Device,
        stream: StreamId,
        size_bytes: u64,
        at: Place,
    ) -> Result<Held> {
        let frees = Kind::CudaFree {
            stream_ordered: true,
        };
        let per_device = device.runtime.device(device.id());
        let Some(freed) = per_device.explicit.take_freed(stream, size_bytes) else {
            let wanted = Reserve::new(Memory::Device, device.id(), size_bytes);
            return Held::new(device, wanted, frees, at);
        };
        Ok(Held {
            runtime: Arc::clone(&device.runtime),
            memory: Arc::new(Untracked {
                first: Some(freed.memory.first.clone().unwrap_or(freed.memory.clone())),
                at,
                name: Mutex::new(None),
                ..*freed.memory
            }),
            frees: Some(frees),
            registered: None,
        })
    }

    pub(super) fn is_stream_ordered(&self) -> bool {
        matches!(
            self.frees,
            Some(Kind::CudaFree {
                stream_ordered: true
            })
        )
    }

    /// Gives up the memory without freeing it: the caller frees it.
    pub(super) fn release(mut self) -> Arc<Untracked> {
        self.frees = None;
        Arc::clone(&self.memory)
    }

    #[track_caller]
    pub(super) fn region(&self, range: impl RangeBounds<u64>) -> Region<'_> {
        let bound = |bound: Bound<&u64>| bound.map(|&at| at as usize);
        let range = (bound(range.start_bound()), bound(range.end_bound()));
        let range = within(range, self.memory.size_bytes as usize);
        let (start, end) = (range.start as u64, range.end as u64);
        Region {
            runtime: &self.runtime,
            of: Of::Untracked(&self.memory),
            start,
            end,
        }
    }

    fn free(&mut self, at: Place, is_drop: bool) {
        let Some(kind) = self.frees.take() else {
            return;
        };
        let (runtime, memory) = (Arc::clone(&self.runtime), Arc::clone(&self.memory));
        let registered = self.registered.take();
        outside_callbacks(move || {
            let all = |pen: &mut Pen<'_>| Accesses::from_slice(&[memory.whole(pen)]);
            runtime.tell_or_drop(kind, all, at, is_drop);
            let Untracked {
                memory,
                device,
                address,
                size_bytes,
                ..
            } = *memory;
            // A lost device may still use the memory, so it is never freed.
            if runtime.is_lost() {
                return;
            }
            // SAFETY: this value owns the memory and is being dropped, and callers that submitted work with it
            // promised that the work is complete. A vector is unpinned before it is freed.
            unsafe {
                match registered {
                    None => runtime.backend.unreserve(memory, device, address),
                    Some(vector) => {
                        runtime.unpin(&vector, size_bytes);
                        vector.free();
                    }
                }
            }
        });
    }
}

/// Frees memory that was freed in stream order, once the device's work is complete. Returns whether there was any.
fn give_back_freed(runtime: &Arc<Runtime>, device: DeviceId) -> bool {
    let freed = std::mem::take(&mut *runtime.device(device).explicit.freed.lock());
    let sync = Kind::SyncDevice {
        device: Some(device),
    };
    let op = as_thread(runtime, |thread| {
        plain(thread.id, sync, &mut None, Location::caller())
    });
    if freed.is_empty() || runtime.seen(runtime.backend.wait(&op, Duration::MAX)) != Ok(true) {
        runtime.device(device).explicit.freed.lock().extend(freed);
        return false;
    }
    for Freed { memory, .. } in freed {
        let Untracked {
            memory,
            device,
            address,
            ..
        } = *memory;
        // SAFETY: the memory was reserved for a stream and freed in its order, and all work of the device is complete.
        unsafe { runtime.backend.unreserve(memory, device, address) };
    }
    true
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free(self.memory.at, true);
    }
}

impl<'a> Region<'a> {
    pub(super) fn lent(block: &'a Block, start: u64, end: u64, mode: Mode) -> Region<'a> {
        Region {
            runtime: &block.runtime,
            of: Of::Lent(block, mode),
            start,
            end,
        }
    }

    /// Returns a part of the region.
    ///
    /// # Panics
    /// If the range is not within the region.
    #[track_caller]
    pub fn part(&self, range: Range<u64>) -> Region<'a> {
        let is_within = range.start <= range.end && range.end <= self.size_bytes();
        assert!(
            is_within,
            "bytes {range:?} are not within a region of {} bytes",
            self.size_bytes()
        );
        Region {
            start: self.start + range.start,
            end: self.start + range.end,
            ..*self
        }
    }

    /// Returns the address of the first byte, for foreign code: a device address or, for host memory, a host address.
    pub fn address(&self) -> u64 {
        let base = match self.of {
            Of::Untracked(memory) => memory.address,
            Of::Lent(block, _) => block.address,
        };
        base.offset(self.start).0
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.end - self.start
    }

    pub(super) fn memory(&self) -> Memory {
        match self.of {
            Of::Untracked(memory) => memory.memory,
            Of::Lent(block, _) => block.memory,
        }
    }

    pub(super) fn device(&self) -> DeviceId {
        match self.of {
            Of::Untracked(memory) => memory.device,
            Of::Lent(block, _) => block.device,
        }
    }

    /// Refuses to write memory that was lent for reading.
    pub(super) fn allows(&self, call: &'static str, mode: Mode) -> Result<()> {
        match self.of {
            Of::Lent(_, Mode::Read) if mode == Mode::Write => Err(Error::Invalid {
                call,
                why: "the memory was lent for reading; lend it with `lend_mut`".into(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn access(&self, mode: Mode, pen: &mut Pen<'_>) -> Access {
        let buffer = match self.of {
            Of::Untracked(memory) => memory.name(pen),
            Of::Lent(block, _) => block.state.lock().name(block, pen),
        };
        let (start, end) = (self.start, self.end);
        Access {
            buffer,
            start,
            end,
            mode,
        }
    }

    /// Returns the access in a form that a graph can keep after the borrow ends; `None` for memory that was lent.
    pub(super) fn kept(&self, mode: Mode) -> Option<Kept> {
        match self.of {
            Of::Untracked(memory) => Some(Kept {
                memory: Arc::clone(memory),
                start: self.start,
                end: self.end,
                mode,
            }),
            Of::Lent(..) => None,
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({:?})", self.all())
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:?})", self.all())
    }
}

impl fmt::Debug for Region<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, at) = (self.size_bytes(), self.address());
        write!(f, "{bytes} bytes at {at:#x}")
    }
}
