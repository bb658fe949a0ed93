//! CUDA as it is: default streams, handles of other libraries, captures, memory that nobody tracks.
//!
//! The safe API ([`crate::stream`], [`crate::buffer`]) inserts the waits that are missing. Here
//! nothing is inserted: a wait that is not there is a race, as in CUDA. All of it is in the log,
//! though, so a checker that listens ([`Device::listen`]) names every race, with both calls and the
//! call that would order them; and the simulated GPU runs any order that CUDA allows, so that a
//! missing wait shows in the result.
//!
//! What submits work is `unsafe`: its caller promises the order of the accesses, and that the memory
//! stays until the work is over. A program that breaks the promise of order has wrong bytes; in the
//! simulator it has nothing worse. What only records, waits or asks needs no promise and is safe.
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
mod memory;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::backend::{Address, Backend, Destroy, Payload};
use crate::buffer::{DeviceBuf, Pod};
use crate::device::{Device, Place, Runtime, as_thread, is_host_func, plain, write};
use crate::error::{Error, Result};
use crate::op::{Access, Accesses, DeviceId, FlagId, Kind, Mode, StreamId};
use crate::stream::{Core, Ended};
use memory::Freed;
use stream::{Own, copy_of, fill_of};

pub(crate) use capture::Capturing;
pub use capture::Graph;
pub use event::Event;
pub use memory::{DeviceMemory, HostMemory, Region};
pub use stream::{Arg, Stream};

pub use crate::op::StreamKind;

/// `cudaSetDevice`: where the blocking calls of this thread run from here on. A thread begins on
/// device 0.
///
/// # Errors
/// What the driver answers.
#[track_caller]
pub fn set_device(device: &Device) -> Result<()> {
    let kind = Kind::SetDevice {
        device: device.id(),
    };
    of_host(&device.runtime, kind, Location::caller())
}

/// `cudaDeviceSynchronize`, of this device: waits for all its streams, those of the safe API too.
///
/// # Ordering
/// Holds up the host.
///
/// # Errors
/// What failed on the device, or that a stream of it is being captured.
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
        // Beside a capture it is refused, and what is refused did not happen.
        if !captures {
            write(&mut pen, &op);
        }
        op
    });
    runtime.finish(&op, at)
}

/// `cudaMemcpy`, in any direction: in the legacy default stream of the thread's device.
///
/// # Ordering
/// As work in the legacy stream: behind all blocking streams of the device, and they behind it; no
/// order with non-blocking ones (R14, R15). From pageable memory to a device it returns when the
/// source has been read; the bytes may arrive later (R19). Between host and device otherwise, and
/// within the host, it returns when it is complete (R19, R21, R23). From device to device it returns
/// at once (R20).
///
/// # Safety
/// As [`Stream::memcpy`].
///
/// # Errors
/// If the sizes differ, a blocking stream is being captured, or what the driver answers.
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

/// `cudaMemset`: in the legacy default stream of the thread's device.
///
/// # Ordering
/// As work in the legacy stream. Returns at once, unless the memory is pinned (R24).
///
/// # Safety
/// As [`Stream::memcpy`].
///
/// # Errors
/// As [`memcpy_blocking`].
#[track_caller]
pub unsafe fn memset_blocking(to: Region<'_>, value: u8) -> Result<()> {
    let at = Location::caller();
    let kind = Kind::MemsetBlocking { to: to.memory() };
    let legacy = Stream::legacy_of_thread(to.runtime)?;
    let fill = fill_of("memset_blocking", to, value)?;
    let touches = [(to, Mode::Write)];
    legacy.work("memset_blocking", kind, Payload::Fill(fill), &touches, at)
}

/// PyTorch's `tensor.record_stream`: memory of the safe API was handed to foreign code on this
/// stream. When it is dropped, whoever gets it next waits for all that the stream was given until
/// then (R53, R54), by whichever code.
///
/// Of a [per-thread default stream](Stream::per_thread) that is all that it was given until this call, since no other
/// thread can ask for its end: call this behind the foreign work, each time.
///
/// # Ordering
/// Waits for nothing, here and when the buffer is dropped. It is no promise for later uses by the
/// safe API: make their stream wait for the foreign work ([`Stream::of`], [`Stream::wait_stream`]).
/// To note too much is safe, so this needs no promise.
///
/// While the stream is being captured, whoever gets the memory waits for what the stream was given before; where it
/// was not noted by then, or another library captures it, the calls that would use the memory are refused until the
/// capture has ended.
///
/// # Errors
/// If they belong to different machines, or the stream is another thread's. For a per-thread default stream also if it
/// is being captured, or what the driver answers.
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
            // As a read, as when a block goes.
            Some(mark) => state.uses.note(0..block.size_bytes, Mode::Read, mark),
            None if state.noted.iter().any(|noted| Arc::ptr_eq(noted, core)) => {}
            None => state.noted.push(Arc::clone(core)),
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

/// Something that one host thread hands over to another: see [`hand_over`].
#[must_use = "another thread takes it"]
#[derive(Debug)]
pub struct Handover {
    runtime: Arc<Runtime>,
    flag: FlagId,
}

/// Tells the log that the calling thread hands over what it has done. The checker knows of no other
/// order between host threads: send the value to the other thread, by whatever means, and
/// [take](Handover::take) it there.
///
/// # Errors
/// What the driver answers.
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
    /// What this thread does from here on is ordered after all that the other one had done.
    ///
    /// # Errors
    /// What the driver answers.
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

/// A call of a thread that is in no stream.
fn of_host(runtime: &Arc<Runtime>, kind: Kind, at: Place) -> Result<()> {
    runtime.check()?;
    as_thread(runtime, |thread| {
        let mut pen = runtime.live.write();
        let op = plain(thread.id, kind, &mut pen, at);
        // SAFETY: it names no memory.
        let submitted = unsafe { runtime.backend.submit(&op, Payload::None) };
        runtime.seen(submitted)?;
        if let Kind::SetDevice { device } = kind {
            thread.current = device;
        }
        write(&mut pen, &op);
        Ok(())
    })
}

// ------------------------------------------------------------------ what a device keeps

/// What the explicit style keeps of a device.
#[derive(Default)]
pub(crate) struct OfDevice {
    legacy: Mutex<Legacy>,
    per_thread: Mutex<PerThread>,
    /// The last to be freed is at the end.
    freed: Mutex<Vec<Freed>>,
    gone: Mutex<Gone>,
    /// Held from the end of a capture until it is a graph.
    instantiates: Mutex<()>,
    captures: Mutex<Vec<Weak<capture::Capture>>>,
    /// Of the whole machine, on its first device.
    flags: Mutex<Flags>,
}

/// The legacy default stream. A log has one of a device, also where the driver refused it first.
#[derive(Default)]
struct Legacy {
    id: Option<StreamId>,
    core: Option<Arc<Core>>,
}

/// The default stream of each thread that asked for it. The log numbers threads anew when they have
/// ended; these are the system's, since the driver's streams end with them.
type PerThread = HashMap<ThreadId, Arc<Core>>;

/// Flags for what threads hand over.
#[derive(Default)]
struct Flags {
    next: u32,
    spare: Vec<FlagId>,
}

impl Flags {
    fn get(&mut self) -> FlagId {
        self.spare.pop().unwrap_or_else(|| {
            self.next += 1;
            FlagId(self.next - 1)
        })
    }
}

/// Streams without handles.
#[derive(Default)]
struct Gone {
    /// Somebody may wait for what was noted on them: they are there as long as marks are.
    noted: Vec<Arc<Core>>,
    /// When there are so many of these, those are looked for that nobody can wait for any more.
    look_at: usize,
    /// Of streams that were given back; the first to go is at the front.
    ended: VecDeque<Ended>,
}

/// Fewer are not looked through.
const NOTED_AT_LEAST: usize = 16;
/// So many ends are asked about before a new chain is taken.
const ENDS_ASKED: usize = 2;

impl OfDevice {
    /// Keeps a stream without handles on which memory was noted. Gives those that nobody can wait for any more.
    fn keep_noted(&self, core: Arc<Core>) -> Vec<Arc<Core>> {
        let mut gone = self.gone.lock();
        gone.noted.push(core);
        if gone.noted.len() < gone.look_at.max(NOTED_AT_LEAST) {
            return Vec::new();
        }
        let noted = std::mem::take(&mut gone.noted);
        let (waited, free) = noted
            .into_iter()
            .partition(|core| Arc::strong_count(core) > 1);
        gone.noted = waited;
        gone.look_at = 2 * gone.noted.len();
        free
    }

    /// The end of a stream that is gone, if it is over.
    fn take_ended(&self, is_over: impl Fn(&Ended) -> bool) -> Option<Ended> {
        for _ in 0..ENDS_ASKED {
            let ended = self.gone.lock().ended.pop_front()?;
            if is_over(&ended) {
                return Some(ended);
            }
            self.gone.lock().ended.push_back(ended);
        }
        None
    }

    /// A thread ends, and its default stream with it.
    pub fn end_thread(&self, thread: ThreadId) {
        self.per_thread.lock().remove(&thread);
    }

    /// Gives back the streams that nobody can wait for any more: all work is over. The default streams stay, and what was
    /// recorded there goes.
    pub fn close(&self, backend: &dyn Backend) {
        drop(self.legacy.lock().core.take());
        self.per_thread.lock().clear();
        let Gone { noted, ended, .. } = std::mem::take(&mut *self.gone.lock());
        for core in noted {
            // SAFETY: nobody has the stream, and all work is over.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
        drop(ended);
    }

    /// Memory that was freed in the order of this stream, for its next owner there (R33, R34).
    fn take_freed(&self, stream: StreamId, size_bytes: u64) -> Option<Freed> {
        let mut freed = self.freed.lock();
        let fits = |freed: &Freed| freed.stream == stream && freed.memory.size_bytes == size_bytes;
        let at = freed.iter().rposition(fits)?;
        Some(freed.remove(at))
    }

    /// The memory that nobody took again.
    pub fn freed(&self) -> Vec<(DeviceId, Address)> {
        let freed = self.freed.lock();
        let each = freed.iter();
        each.map(|f| (f.memory.device, f.memory.address)).collect()
    }

    /// Whether a capture that began on it is under way.
    pub fn is_capturing(&self) -> bool {
        let mut captures = self.captures.lock();
        captures.retain(|capture| capture.upgrade().is_some_and(|c| c.is_open()));
        !captures.is_empty()
    }
}

fn same_machine(call: &'static str, one: &Arc<Runtime>, other: &Arc<Runtime>) -> Result<()> {
    // Before any lock is taken.
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

/// A function on the host may not wait for the device, which waits for it. To be asked before the log is told of
/// the call: what is refused did not happen.
fn refuse_in_host_func(call: &'static str) -> Result<()> {
    if !is_host_func() {
        return Ok(());
    }
    Err(Error::Refused {
        call,
        code: 800,
        why: "a function on the host may not wait for the device, which waits for it; wait on another thread".into(),
    })
}

/// The accesses of a call.
fn accesses(regions: &[(Region<'_>, Mode)], pen: &mut crate::log::Pen<'_>) -> Accesses {
    let each = regions.iter();
    let each = each.map(|(region, mode)| -> Access { region.access(*mode, pen) });
    each.collect()
}
