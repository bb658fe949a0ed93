//! CUDA's own model: default streams, handles of other libraries, captures, and memory that is not tracked.
//!
//! The safe API ([`crate::stream`], [`crate::buffer`]) inserts the waits that are missing. Here nothing is inserted:
//! a missing wait is a race, as in CUDA. All calls are in the log, however, so an attached checker
//! ([`Device::listen`]) reports every race, with both calls and the call that would order them; and the simulated GPU
//! runs any order that CUDA allows, so that a missing wait shows in the result.
//!
//! Calls that submit work are `unsafe`: the caller promises the order of the accesses, and that the memory is not freed
//! until the work is complete. A program that breaks the promise of order computes wrong bytes; in the simulator
//! nothing worse can happen. Calls that only record, wait or query need no promise and are safe.
//!
//! ```
//! use sidestream::device::Device;
//! use sidestream::explicit::{DeviceMemory, Event, HostMemory, Stream};
//!
//! let device = Device::open("sim:h200")?;
//! let (up, down) = (Stream::blocking(&device, "up")?, Stream::non_blocking(&device, "down", 0)?);
//! let (host, data) = (HostMemory::pinned(&device, 64)?, DeviceMemory::malloc(&device, 64)?);
//! host.write(0, &[7u8; 64]);
//! let copied = Event::new(&device)?;
//! // SAFETY: `down` waits for `up`, and the host for `down`; the memory stays until then.
//! unsafe {
//!     up.memcpy(host.all(), data.all())?;
//!     up.record(&copied)?;
//!     down.wait(&copied)?;
//!     down.memcpy(data.all(), host.all())?;
//! }
//! down.synchronize()?;
//! let mut bytes = [0u8; 64];
//! host.read(0, &mut bytes);
//! assert_eq!(bytes, [7; 64]);
//! # Ok::<(), sidestream::error::Error>(())
//! ```

mod capture;
mod event;
mod interprocess;
mod memory;
mod stream;
mod work;

use std::panic::Location;
use std::sync::Arc;

use crate::backend::Payload;
use crate::buffer::{DeviceBuf, Pod};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::library::MIX_PIECES;
use crate::op::{Access, Accesses, DeviceId, FlagId, Kind, Mode};
use crate::tracker::{Place, Runtime, as_thread, is_host_func, plain, write};
use stream::Own;
use work::{copy_of, fill_of};

pub use capture::Graph;
pub use event::Event;
pub use memory::{DeviceMemory, HostMemory, Region};
pub use stream::Stream;
pub use work::Arg;

pub use crate::op::StreamKind;

/// `cudaSetDevice`: sets the device on which the blocking calls of this thread run from here on. A thread begins on
/// device 0.
///
/// # Errors
/// Any error that the driver returns.
#[track_caller]
pub fn set_device(device: &Device) -> Result<()> {
    let kind = Kind::SetDevice {
        device: device.id(),
    };
    of_host(&device.runtime, kind, Location::caller())
}

/// `cudaDeviceSynchronize` of this device: waits for all its streams, including those of the safe API.
///
/// # Ordering
/// Blocks the host.
///
/// # Errors
/// The error of work that failed on the device, or that a stream of the device is being captured.
#[track_caller]
pub fn synchronize(device: &Device) -> Result<()> {
    let at = Location::caller();
    let runtime = &device.runtime;
    runtime.check()?;
    refuse_in_host_func("synchronize")?;
    let captures = runtime.device(device.id()).explicit.is_capturing();
    let op = as_thread(runtime, |thread| {
        let mut pen = runtime.live.write();
        let kind = Kind::SyncDevice {
            device: Some(device.id()),
        };
        let op = plain(thread.id, kind, &mut pen, at);
        // During a capture the call is refused, and a refused call is not logged.
        if !captures {
            write(&mut pen, &op);
        }
        op
    });
    runtime.finish(&op, at)
}

/// `cudaMemcpy`, in any direction, in the legacy default stream of the thread's current device.
///
/// # Ordering
/// Like work in the legacy stream: it is ordered after all earlier work in the blocking streams of the device, and
/// their later work is ordered after it; it is unordered with non-blocking streams (R14, R15). A copy from pageable
/// memory to a device returns when the source has been read; the bytes may arrive later (R19). Other copies between
/// host and device, and within the host, return when they are complete (R19, R21, R23). A copy from device to device
/// returns at once (R20).
///
/// # Safety
/// As for [`Stream::memcpy`].
///
/// # Errors
/// If the sizes differ, a blocking stream is being captured, or any error that the driver returns.
#[track_caller]
pub unsafe fn memcpy_blocking(from: Region<'_>, to: Region<'_>) -> Result<()> {
    let at = Location::caller();
    let copy = copy_of("memcpy_blocking", from, to)?;
    let kind = Kind::CopyBlocking {
        from: from.memory(),
        to: to.memory(),
    };
    let legacy = Stream::legacy_of_thread(to.runtime)?;
    let touches = [(from, Mode::Read), (to, Mode::Write)];
    legacy.work("memcpy_blocking", kind, Payload::Copy(copy), &touches, at)
}

/// `cudaMemset`, in the legacy default stream of the thread's current device.
///
/// # Ordering
/// Like work in the legacy stream. Returns at once, unless the memory is pinned (R24).
///
/// # Safety
/// As for [`Stream::memcpy`].
///
/// # Errors
/// As for [`memcpy_blocking`].
#[track_caller]
pub unsafe fn memset_blocking(to: Region<'_>, value: u8) -> Result<()> {
    let at = Location::caller();
    let kind = Kind::MemsetBlocking { to: to.memory() };
    let legacy = Stream::legacy_of_thread(to.runtime)?;
    let fill = fill_of("memset_blocking", to, value)?;
    let touches = [(to, Mode::Write)];
    legacy.work("memset_blocking", kind, Payload::Fill(fill), &touches, at)
}

/// PyTorch's `tensor.record_stream`: declares that memory of the safe API was given to foreign code on this stream.
/// When the buffer is dropped, the memory's next owner waits for all work that any code has submitted to the stream
/// by then (R53, R54).
///
/// For a [per-thread default stream](Stream::per_thread) this covers only the work submitted before this call, since
/// no other thread can ask for the stream's end: call it after the foreign work, each time.
///
/// # Ordering
/// Does not wait, neither here nor when the buffer is dropped. It does not order later uses by the safe API: make their
/// stream wait for the foreign work ([`Stream::of`], [`Stream::wait_stream`]). Recording a stream that is not used is
/// safe, so this function is not `unsafe`.
///
/// While the stream is being captured, the next owner waits for the work that the stream was given before the
/// capture. If the buffer was not recorded by then, or another library captures the stream, calls that would use the
/// memory are refused until the capture has ended.
///
/// # Errors
/// If the buffer and the stream belong to different machines, or the stream is another thread's default stream. For a
/// per-thread default stream also if it is being captured, or any error that the driver returns.
#[track_caller]
pub fn record_stream<T: Pod>(buffer: &DeviceBuf<T>, stream: &Stream) -> Result<()> {
    let at = Location::caller();
    let block = buffer.block();
    same_machine("record_stream", &block.runtime, stream.runtime())?;
    block.runtime.check()?;
    let core = stream.core();
    let mark = stream.end_of_this_thread(at)?;
    core.note();
    as_thread(&block.runtime, |thread| {
        let mut pen = block.runtime.live.write();
        let mut state = block.state.lock();
        match mark {
            // The foreign work is noted as a read, like the uses on noted streams when a block is dropped.
            Some(mark) => state.uses.note(0..block.size_bytes, Mode::Read, mark),
            None => state.note_on(core),
        }
        let Some(open) = &mut pen else { return };
        let buffer = state.name(block, open);
        let stream = core.id;
        let kind = Kind::RecordStream { buffer, stream };
        let op = plain(thread.id, kind, &mut pen, at);
        write(&mut pen, &op);
    });
    Ok(())
}

/// A point that one host thread hands over to another: see [`hand_over`].
#[must_use = "another thread has to take it in order to be ordered after this one"]
#[derive(Debug)]
pub struct Handover {
    runtime: Arc<Runtime>,
    flag: FlagId,
}

/// Tells the log that the calling thread hands over the work that it has done. The checker knows of no other order
/// between host threads: send the returned value to the other thread, by any means, and [take](Handover::take) it
/// there.
///
/// # Errors
/// Any error that the driver returns.
#[track_caller]
pub fn hand_over(device: &Device) -> Result<Handover> {
    let at = Location::caller();
    let flags = &device.runtime.device(DeviceId(0)).explicit.flags;
    let flag = flags.lock().get();
    let handover = Handover {
        runtime: Arc::clone(&device.runtime),
        flag,
    };
    of_host(&device.runtime, Kind::SetFlag { flag }, at)?;
    Ok(handover)
}

impl Handover {
    /// Orders all that this thread does from here on after all that the other thread had done.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn take(self) -> Result<()> {
        let flag = self.flag;
        of_host(&self.runtime, Kind::WaitFlag { flag }, Location::caller())
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if !self.runtime.backend.is_this_process() {
            return;
        }
        let flags = &self.runtime.device(DeviceId(0)).explicit.flags;
        flags.lock().spare.push(self.flag);
    }
}

/// Submits a host call that is in no stream.
fn of_host(runtime: &Arc<Runtime>, kind: Kind, at: Place) -> Result<()> {
    runtime.check()?;
    as_thread(runtime, |thread| {
        let mut pen = runtime.live.write();
        let op = plain(thread.id, kind, &mut pen, at);
        // SAFETY: the call names no memory.
        let submitted = unsafe { runtime.backend.submit(&op, Payload::None) };
        runtime.seen(submitted)?;
        if let Kind::SetDevice { device } = kind {
            thread.current = device;
        }
        write(&mut pen, &op);
        Ok(())
    })
}

fn same_machine(call: &'static str, one: &Arc<Runtime>, other: &Arc<Runtime>) -> Result<()> {
    // Checked before any lock is taken.
    one.backend.check()?;
    if Arc::ptr_eq(one, other) {
        return Ok(());
    }
    other.backend.check()?;
    Err(Error::Invalid {
        call,
        why: "the two belong to different machines; open both devices together with \
              `Device::open_all`"
            .into(),
    })
}

/// Refuses to block in a function on the host: the device waits for the function. Called before the log observes the
/// call, because a refused call is not logged.
fn refuse_in_host_func(call: &'static str) -> Result<()> {
    if !is_host_func() {
        return Ok(());
    }
    Err(Error::Refused {
        call,
        code: 800,
        why: "a function on the host may not wait for the device, because the device waits for it; wait on another thread".into(),
    })
}

/// Returns the arguments of [`mix`](crate::kernel::library::mix): the duration, the seed, and the regions that the
/// kernel reads and writes, in this order. Returns `None` for more than [`MIX_PIECES`] regions.
pub fn mix_args<'a>(
    ns: u64,
    seed: u64,
    reads: &[Region<'a>],
    writes: &[Region<'a>],
) -> Option<Vec<Arg<'a>>> {
    let touched = reads.len() + writes.len();
    let unused = MIX_PIECES.checked_sub(touched)?;
    let value = Arg::value::<u64>;
    let count = |regions: &[Region<'a>]| Arg::value(regions.len() as u32);
    let mut args = vec![value(ns), value(seed), count(reads), count(writes)];
    for &region in reads {
        args.extend([Arg::Reads(region), value(region.size_bytes())]);
    }
    for &region in writes {
        args.extend([Arg::Writes(region), value(region.size_bytes())]);
    }
    args.extend(std::iter::repeat_n(value(0), 2 * unused));
    Some(args)
}

/// Returns the accesses of a call.
fn accesses(regions: &[(Region<'_>, Mode)], pen: &mut crate::log::Pen<'_>) -> Accesses {
    let each = regions.iter();
    let each = each.map(|(region, mode)| -> Access { region.access(*mode, pen) });
    each.collect()
}
