//! State that all handles of one machine share.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::cached::Memories;
use super::elsewhere::{is_kernel, outside_callbacks};
use super::explicit::OfDevice;
use super::process::Here;
use super::recorded::{OwnEvent, SpareEvents};
use super::registered::Registered;
use super::streams::Streams;
use super::telling::{Place, plain};
use crate::alloc::Spare;
use crate::backend::{Address, Backend, BesideCaptures, Create};
use crate::error::{Error, Lost, Result};
use crate::log::Live;
use crate::op::{DeviceId, Kind, Memory, ThreadId};
use crate::order::live::{FEW, Point, ThreadClock};

/// A machine with its devices: the back end, and all that the front end knows about them.
pub(crate) struct Runtime {
    pub backend: Here,
    pub live: Live,
    pub devices: Vec<PerDevice>,
    pub pinned: Memories,
    /// Memory of the program that is still pinned after its owner dropped it.
    pub registered: Registered,
    /// Whether missing waits are inserted. Only an `unsafe` option turns it off.
    pub is_tracking: bool,
    /// Whether every call waits for its work (synchronous mode).
    pub is_synchronous: bool,
    /// Receives notices, such as one that names the work that a long wait is waiting for.
    pub notice: fn(&str),
    pub waits_inserted: AtomicU64,
    /// Whether other code has the handle of a stream of the safe API.
    pub shares_streams: AtomicBool,
    /// Whether a stream that can be captured was ever created.
    pub meets_captures: AtomicBool,
    chains: AtomicU32,
    /// Chains that were given back before any step was counted on them.
    unused_chains: Mutex<Vec<u32>>,
    pub graphs: AtomicU32,
    is_lost: AtomicBool,
    lost: Mutex<Option<Lost>>,
    /// Records of threads that have ended: a new thread may continue one of them, since it begins after the old thread
    /// has ended.
    ended: Mutex<Vec<Thread>>,
    threads: AtomicU32,
}

/// A host thread, as seen by one runtime.
pub(crate) struct Thread {
    pub id: ThreadId,
    /// The thread's current device, on which blocking calls run.
    pub current: DeviceId,
    pub clock: ThreadClock,
    /// During a call that makes one stream wait for another: the end of the stream that is waited for.
    pub link: Point,
}

/// The options of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub memory_bytes: Option<u64>,
    pub pinned_bytes: u64,
    pub spare: Option<Spare>,
    pub is_tracking: bool,
    pub is_synchronous: bool,
    pub notice: fn(&str),
}

/// One device of the machine.
pub(crate) struct PerDevice {
    pub memories: Memories,
    pub streams: Streams,
    pub spare: Arc<SpareEvents>,
    pub spare_timed: Arc<SpareEvents>,
    /// Used by the explicit style only.
    pub spare_sleeping: Arc<SpareEvents>,
    /// Spare events that processes share, for the explicit style only.
    pub spare_shared: Arc<SpareEvents>,
    pub explicit: OfDevice,
}

const IN_KERNEL: &str = "a kernel in Rust, and the function that states its cost, may not call the runtime, which may be \
                         waiting for it; make the call from other host code";

impl Runtime {
    pub(crate) fn new(backend: Arc<dyn Backend>, options: &Settings) -> Arc<Runtime> {
        let devices = backend.devices().iter().enumerate();
        let devices = devices.map(|(at, caps)| PerDevice {
            memories: Memories::of_device(
                DeviceId(at as u32),
                caps,
                options
                    .memory_bytes
                    .map_or(caps.memory_bytes, |most| most.min(caps.memory_bytes)),
                options.spare,
            ),
            streams: Streams::default(),
            spare: Arc::default(),
            spare_timed: Arc::default(),
            spare_sleeping: Arc::default(),
            spare_shared: Arc::default(),
            explicit: OfDevice::default(),
        });
        Arc::new(Runtime {
            devices: devices.collect(),
            pinned: Memories::pinned(options.pinned_bytes),
            registered: Registered::default(),
            backend: Here::new(backend),
            live: Live::default(),
            is_tracking: options.is_tracking,
            is_synchronous: options.is_synchronous,
            notice: options.notice,
            waits_inserted: AtomicU64::new(0),
            shares_streams: AtomicBool::new(false),
            meets_captures: AtomicBool::new(false),
            chains: AtomicU32::new(0),
            unused_chains: Mutex::default(),
            graphs: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            lost: Mutex::new(None),
            ended: Mutex::new(Vec::new()),
            threads: AtomicU32::new(0),
        })
    }

    pub(crate) fn memories(&self, memory: Memory, device: DeviceId) -> &Memories {
        match memory {
            Memory::Device | Memory::Managed => &self.device(device).memories,
            Memory::Pinned | Memory::Pageable => &self.pinned,
        }
    }

    pub(crate) fn device(&self, device: DeviceId) -> &PerDevice {
        &self.devices[device.0 as usize]
    }

    /// Returns the number of a new chain, for a stream's clock.
    pub(crate) fn new_chain(&self) -> u32 {
        let unused = self.unused_chains.lock().pop();
        unused.unwrap_or_else(|| self.chains.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes back a chain on which no step was ever counted.
    pub(crate) fn leave_chain(&self, chain: u32) {
        self.unused_chains.lock().push(chain);
    }

    /// Whether there are more chains than fit into the cheapest form of a clock.
    pub(crate) fn has_many_chains(&self) -> bool {
        self.chains.load(Ordering::Relaxed) as usize > FEW
    }

    // -------------------------------------------------------------- errors

    /// Returns an error if calls are impossible here: the device is lost, which every later call reports; the calling
    /// code is a kernel; or this process is a child of the one that opened the machine.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost.load(Ordering::Relaxed) || is_kernel() || !self.backend.is_this_process() {
            self.refuse()
        } else {
            Ok(())
        }
    }

    /// Like [`Runtime::check`], for code that is known to be neither a kernel nor in a forked child.
    #[inline]
    pub(crate) fn check_lost(&self) -> Result<()> {
        if self.is_lost() {
            self.refuse()
        } else {
            Ok(())
        }
    }

    /// Returns the error for a failed [`Runtime::check`].
    #[cold]
    pub(crate) fn refuse(&self) -> Result<()> {
        self.backend.check()?;
        if is_kernel() {
            return Err(Error::Refused {
                call: "a call from a kernel",
                code: 800,
                why: IN_KERNEL.into(),
            });
        }
        match &*self.lost.lock() {
            None => Ok(()),
            Some(lost) => Err(Error::DeviceLost(lost.clone())),
        }
    }

    /// Panics in a kernel; for calls that return no error.
    ///
    /// # Panics
    /// If it is called from a kernel in Rust, where such a call might wait for itself.
    #[inline]
    #[track_caller]
    pub(crate) fn refuse_kernels(&self) {
        assert!(!is_kernel(), "{IN_KERNEL}");
    }

    /// Whether a device is lost: then it cannot be queried, and the state of its work is unknown.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Adds to the error of a lost device the call that caused the failure, where that is known.
    #[cold]
    pub(crate) fn lost_by(&self, error: Error, at: Place) -> Error {
        if let (Error::DeviceLost(_), Some(lost)) = (&error, &mut *self.lost.lock())
            && !lost.why.contains(", called at ")
        {
            lost.why = format!("{}, called at {at}", lost.why);
            return Error::DeviceLost(lost.clone());
        }
        error
    }

    /// Notes that a device is lost if the back end reports it.
    #[inline]
    pub(crate) fn seen<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.note(error)),
        }
    }

    #[cold]
    fn note(&self, error: Error) -> Error {
        let Error::DeviceLost(lost) = error else {
            return error;
        };
        let known = self.lost.lock().get_or_insert(lost).clone();
        self.is_lost.store(true, Ordering::Relaxed);
        Error::DeviceLost(known)
    }

    // -------------------------------------------------------------- threads

    pub(crate) fn new_thread(&self) -> Thread {
        if let Some(ended) = self.ended.lock().pop() {
            return ended;
        }
        let thread = std::thread::current();
        let id = self.live.new_thread(thread.name().unwrap_or(""));
        let number = self.threads.fetch_add(1, Ordering::Relaxed);
        Thread {
            id,
            current: DeviceId(0),
            clock: ThreadClock::new(number),
            link: Point::default(),
        }
    }

    pub(crate) fn end_thread(&self, thread: Thread) {
        // A new thread begins on device 0.
        if thread.current == DeviceId(0) && self.backend.is_this_process() {
            self.ended.lock().push(thread);
        }
    }

    // -------------------------------------------------------------- events

    /// Returns an unused event.
    pub(crate) fn event(&self, device: DeviceId, timing: bool) -> Result<OwnEvent> {
        let per_device = self.device(device);
        let spare = if timing {
            &per_device.spare_timed
        } else {
            &per_device.spare
        };
        let known = spare.0.lock().pop();
        let id = match known {
            Some(id) => id,
            None => {
                let id = self.live.new_event(timing, device);
                let create = Create::Event {
                    id,
                    device,
                    timing,
                    sleeps: false,
                };
                // SAFETY: the id is new.
                let created = unsafe { self.backend.create(create) };
                self.seen(created)?;
                id
            }
        };
        let spare = Arc::clone(spare);
        Ok(OwnEvent { id, device, spare })
    }

    // -------------------------------------------------------------- host calls

    /// Runs a call that CUDA forbids to all threads while a stream is captured in global mode, with this thread
    /// exempted: otherwise an unrelated call would invalidate the capture.
    #[inline]
    pub(crate) fn beside_captures<R>(&self, act: impl FnOnce() -> R) -> R {
        if self.meets_captures.load(Ordering::Relaxed) {
            let _beside = BesideCaptures::on(&*self.backend);
            act()
        } else {
            act()
        }
    }

    /// Refuses to free memory to the driver while a stream is being captured: the driver would wait for the whole
    /// device, which would invalidate the capture.
    pub(crate) fn refuse_to_give_back(&self) -> Result<()> {
        let mut devices = self.devices.iter();
        if devices.any(|device| device.explicit.is_capturing()) {
            Err(Error::Invalid {
                call: "memory",
                why: "freeing memory to the driver would end the capture that is in progress; end the capture first, or \
                      allocate the memory before it begins"
                    .into(),
            })
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Drop for Runtime {
    /// Runs when no handle is left. Submitted work still runs; after it has completed, all memory and objects are
    /// freed. A runtime that lost its device, or that a forked process has inherited, frees nothing.
    fn drop(&mut self) {
        if !self.backend.is_this_process() {
            self.live.forget();
            return;
        }
        if self.is_lost() {
            return;
        }
        let devices = std::mem::take(&mut self.devices);
        let rest = Rest {
            backend: self.backend.handle(),
            freed: devices.iter().flat_map(|d| d.explicit.freed()).collect(),
            devices,
            pinned: std::mem::replace(&mut self.pinned, Memories::pinned(0)),
            registered: std::mem::take(&mut self.registered),
        };
        // A function on the host cannot wait for its stream, because the stream waits for the function.
        outside_callbacks(move || drop(rest));
    }
}

/// The remaining state of a machine without handles.
struct Rest {
    backend: Arc<dyn Backend>,
    /// Device memory that was freed in stream order.
    freed: Vec<(DeviceId, Address)>,
    devices: Vec<PerDevice>,
    pinned: Memories,
    registered: Registered,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let devices = 0..self.backend.devices().len() as u32;
        let is_over = devices.map(DeviceId).all(|device| {
            self.backend.drain(device).unwrap_or_else(|| {
                let kind = Kind::SyncDevice {
                    device: Some(device),
                };
                let op = plain(ThreadId(0), kind, &mut None, Location::caller());
                self.backend.wait(&op, Duration::MAX) == Ok(true)
            })
        });
        let backend = &*self.backend;
        // Memory that a device may still use is never freed.
        if is_over {
            for &(device, at) in &self.freed {
                // SAFETY: the memory was freed in stream order, and all work is complete.
                unsafe { backend.unreserve(Memory::Device, device, at) };
            }
        }
        let of_devices = self.devices.iter_mut().map(|device| &mut device.memories);
        for memories in of_devices.chain([&mut self.pinned]) {
            memories.close(backend, is_over);
        }
        self.registered.close(backend, is_over);
        for device in &self.devices {
            device.streams.close(backend);
            device.explicit.close(backend);
        }
        // The last marks were dropped with the memory and the streams: now every event is spare.
        for device in &self.devices {
            device.spare.close(backend);
            device.spare_timed.close(backend);
            device.spare_sleeping.close(backend);
            device.spare_shared.close(backend);
        }
    }
}
