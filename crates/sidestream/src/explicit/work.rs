//! Work for a stream: kernels, copies, functions on the host, stream-ordered memory.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use smallvec::SmallVec;

use super::memory::{DeviceMemory, Held, Region};
use super::stream::Touches;
use super::{Stream, same_machine};
use crate::backend::{self, Address, Copy, Fill, Launch, Payload};
use crate::buffer::Pod;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, KernelArgs};
use crate::op::{Accesses, Kind, Memory, Mode};
use crate::stream::{CopyPlan, FillPlan, not_empty};
use crate::tracker::{Freed, as_host_func, drop_elsewhere};

/// An argument of a kernel, with the kernel's access to it.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Memory that the kernel only reads.
    Reads(Region<'a>),
    /// Memory that the kernel writes and may also read.
    Writes(Region<'a>),
    /// A number of up to eight bytes; see [`Arg::value`].
    Value {
        /// Bytes of the number.
        bytes: [u8; 8],
        /// Number of bytes that count.
        len: u8,
    },
}

impl Arg<'_> {
    /// Makes an argument of a number of at most eight bytes.
    pub fn value<T: Pod>(value: T) -> Arg<'static> {
        const { assert!(size_of::<T>() <= 8, "a value has at most eight bytes") };
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        let len = size_of::<T>() as u8;
        Arg::Value { bytes, len }
    }
}

impl Stream {
    /// `cudaMemcpyAsync`, in any direction, and `cudaMemcpyPeerAsync` between two devices.
    ///
    /// # Ordering
    /// Runs after the earlier work of the stream, and for a blocking or legacy stream after that of the other side
    /// (R14). Does not block the host, unless one side is pageable: then it may (R22).
    ///
    /// # Safety
    /// The memory is not freed, or taken out by [`HostMemory::into_vec`](super::HostMemory::into_vec), before the
    /// copy is complete. The caller has ordered the copy against all conflicting accesses: of other streams, of the
    /// host, and of the safe API if the memory was lent.
    ///
    /// # Errors
    /// If the sizes differ or the memory belongs to another machine, or any error that the driver returns.
    #[track_caller]
    pub unsafe fn memcpy(&self, from: Region<'_>, to: Region<'_>) -> Result<()> {
        let copy = copy_of("memcpy", from, to)?;
        let sides = [from, to].map(|side| (side.memory(), side.device()));
        let kind = Kind::copy(self.id(), self.device_id(), sides[0], sides[1]);
        let touches = [(from, Mode::Read), (to, Mode::Write)];
        self.work(
            "memcpy",
            kind,
            Payload::Copy(copy),
            &touches,
            Location::caller(),
        )
    }

    /// `cudaMemsetAsync`: sets every byte to `value`.
    ///
    /// # Ordering
    /// As for [`Stream::memcpy`]; never blocks the host.
    ///
    /// # Safety
    /// As for [`Stream::memcpy`].
    ///
    /// # Errors
    /// As for [`Stream::memcpy`]; also for pageable memory.
    #[track_caller]
    pub unsafe fn memset(&self, to: Region<'_>, value: u8) -> Result<()> {
        let fill = fill_of("memset", to, value)?;
        let kind = Kind::Memset { stream: self.id() };
        let touches = [(to, Mode::Write)];
        self.work(
            "memset",
            kind,
            Payload::Fill(fill),
            &touches,
            Location::caller(),
        )
    }

    /// Launches a kernel.
    ///
    /// # Ordering
    /// As for [`Stream::memcpy`]; never blocks the host.
    ///
    /// # Safety
    /// The arguments match the kernel's signature, in its order, and the kernel does not write those passed as
    /// [`Arg::Reads`]. Otherwise as for [`Stream::memcpy`].
    ///
    /// # Errors
    /// [`Error::NoForm`] if the kernel has no form for this device, [`Error::Invalid`] if the grid is empty or memory
    /// is pageable or on another device, or any error that the driver returns.
    #[track_caller]
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel<A>,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<()> {
        let at = Location::caller();
        let touches: Touches<'_> = args.iter().filter_map(Arg::touch).collect();
        let is_reached = |region: &Region<'_>| match region.memory() {
            Memory::Device => region.device() == self.device_id(),
            Memory::Pageable => false,
            Memory::Pinned | Memory::Managed => true,
        };
        if touches.iter().any(|(region, _)| !is_reached(region)) {
            return Err(Error::Invalid {
                call: "launch",
                why: format!(
                    "an argument of kernel `{}` is pageable or on another device, where the \
                     kernel cannot access it; copy it first",
                    kernel.name()
                ),
            });
        }
        not_empty(grid, kernel.name())?;
        let passed: SmallVec<[backend::Arg; 6]> = args.iter().map(Arg::passed).collect();
        let kind = Kind::kernel(self.id());
        let launch = Launch {
            code: kernel.code(),
            grid,
            args: &passed,
        };
        self.work("launch", kind, Payload::Launch(launch), &touches, at)
    }

    /// `cudaLaunchHostFunc`: runs a function on the host, in stream order. A panic in it is reported as a notice
    /// ([`Options::notice`](crate::device::Options::notice)) and has no other effect.
    ///
    /// # Ordering
    /// Starts when the earlier work of the stream is complete; later work waits for the function (R28). Does not
    /// block the calling thread.
    ///
    /// # Safety
    /// The function calls nothing of the runtime except [`HostMemory::read`](super::HostMemory::read) and
    /// [`HostMemory::write`](super::HostMemory::write), and reads and writes only the host memory that is named here.
    /// Otherwise as for [`Stream::memcpy`].
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub unsafe fn host_func(
        &self,
        reads: &[Region<'_>],
        writes: &[Region<'_>],
        act: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let at = Location::caller();
        let reads = reads.iter().map(|region| (*region, Mode::Read));
        let writes = writes.iter().map(|region| (*region, Mode::Write));
        let touches: Touches<'_> = reads.chain(writes).collect();
        let kind = Kind::HostFunc {
            stream: self.id(),
            raises: None,
        };
        let act = Unrun(Some(act));
        let notice = self.runtime().notice;
        let run = Box::new(move || act.run(notice));
        self.work("host_func", kind, Payload::HostFunc(run), &touches, at)
    }

    /// `cudaMallocAsync`: the memory may be used in the order of this stream, and on other streams after an event
    /// (R33). It may be memory that [`Stream::free_async`] freed on this stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error that the driver returns.
    #[track_caller]
    pub fn malloc_async(&self, size_bytes: u64) -> Result<DeviceMemory> {
        let at = Location::caller();
        let device = Device::of(self.runtime(), self.device_id());
        let held = Held::of_stream(&device, self.id(), size_bytes, at)?;
        let kind = Kind::MallocAsync { stream: self.id() };
        let runs = self.own.captured_in().is_none();
        self.submit(kind, Payload::None, runs, at, |pen| {
            Accesses::from_slice(&[held.memory.whole(pen)])
        })?;
        Ok(DeviceMemory { held })
    }

    /// `cudaFreeAsync`: frees the memory in the order of this stream.
    ///
    /// # Ordering
    /// Does not block the host. All uses on other streams have to be ordered before it (R34).
    ///
    /// # Errors
    /// If it does not come from [`Stream::malloc_async`] or is on another device, or any error that the driver
    /// returns; then it is freed as if it were dropped.
    #[track_caller]
    pub fn free_async(&self, memory: DeviceMemory) -> Result<()> {
        let at = Location::caller();
        let held = memory.held;
        same_machine("free_async", self.runtime(), &held.runtime)?;
        if !held.is_stream_ordered() || held.memory.device != self.device_id() {
            return Err(Error::Invalid {
                call: "free_async",
                why: "the memory does not come from `malloc_async` on this device; drop it".into(),
            });
        }
        let kind = Kind::FreeAsync { stream: self.id() };
        let runs = self.own.captured_in().is_none();
        self.submit(kind, Payload::None, runs, at, |pen| {
            Accesses::from_slice(&[held.memory.whole(pen)])
        })?;
        let memory = held.release();
        let stream = self.id();
        let kept = &self.runtime().device(memory.device).explicit.freed;
        kept.lock().push(Freed { stream, memory });
        Ok(())
    }
}

impl<'a> Arg<'a> {
    fn touch(&self) -> Option<(Region<'a>, Mode)> {
        match *self {
            Arg::Reads(region) => Some((region, Mode::Read)),
            Arg::Writes(region) => Some((region, Mode::Write)),
            Arg::Value { .. } => None,
        }
    }

    fn passed(&self) -> backend::Arg {
        match (*self, self.touch()) {
            (Arg::Value { bytes, len }, _) => backend::Arg::Scalar { bytes, len },
            (Arg::Reads(region) | Arg::Writes(region), touch) => backend::Arg::Memory {
                at: Address(region.address()),
                bytes: region.size_bytes(),
                mode: touch.map_or(Mode::Read, |(_, mode)| mode),
            },
        }
    }
}

/// A function on the host that has not run. If it never runs, it is dropped on another thread, because the back end
/// holds locks when it refuses the call.
struct Unrun<F: FnOnce() + Send + 'static>(Option<F>);

impl<F: FnOnce() + Send + 'static> Unrun<F> {
    fn run(mut self, notice: fn(&str)) {
        let Some(act) = self.0.take() else { return };
        let ran = as_host_func(|| catch_unwind(AssertUnwindSafe(act)));
        if let Err(panic) = ran {
            drop_elsewhere(panic);
            notice("sidestream: a function on the host panicked; the stream continues");
        }
    }
}

impl<F: FnOnce() + Send + 'static> Drop for Unrun<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            drop_elsewhere(Box::new(act));
        }
    }
}

pub(super) fn copy_of(call: &'static str, from: Region<'_>, to: Region<'_>) -> Result<Copy> {
    let (bytes, room) = (from.size_bytes(), to.size_bytes());
    if bytes != room {
        return Err(Error::Invalid {
            call,
            why: format!("{bytes} bytes cannot be copied into {room}; use equal sizes"),
        });
    }
    let plan = CopyPlan::values::<u8>(bytes as usize);
    Ok(plan.work(Address(from.address()), Address(to.address())))
}

pub(super) fn fill_of(call: &'static str, to: Region<'_>, value: u8) -> Result<Fill> {
    if to.memory() == Memory::Pageable {
        return Err(Error::Invalid {
            call,
            why: "a device cannot fill pageable memory; write it on the host".into(),
        });
    }
    Ok(FillPlan::bytes::<u8>(value).work(Address(to.address()), to.size_bytes()))
}
