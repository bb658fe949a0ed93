//! Devices: where streams and memory come from.

#[cfg(feature = "observe")]
mod observe;
mod open;

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{Backend, Caps};
use crate::buffer::{Pinned, Pod, Refused};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::stream::{Stream, size_of_all};
use crate::tracker::{Place, Runtime, Settings};

#[cfg(feature = "observe")]
pub use observe::{Recording, Span};
pub use open::DeviceName;

pub use crate::alloc::{Spare, Statistics};
pub use crate::op::DeviceId;
pub use crate::sim::Schedule;

/// A device. Clones are the same device.
///
/// ```
/// use sidestream::device::Device;
///
/// let device = Device::open("sim:h200")?;
/// let stream = device.stream("work")?;
/// let zeros = stream.alloc_zeroed::<u32>(1024)?;
/// let mut host = vec![1; 1024];
/// stream.memcpy_d2h(zeros.view(), &mut host)?;
/// assert!(host.iter().all(|&value| value == 0));
/// # Ok::<(), sidestream::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) runtime: Arc<Runtime>,
    id: DeviceId,
}

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) schedule: Schedule,
    settings: Settings,
    pub(crate) driver: Option<PathBuf>,
    pub(crate) compiler: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            schedule: Schedule::InOrder,
            settings: Settings {
                memory_bytes: None,
                pinned_bytes: 64 << 30,
                spare: Some(Spare {
                    percent: 12,
                    waits: false,
                }),
                is_tracking: true,
                is_synchronous: false,
                notice: |text| eprintln!("{text}"),
            },
            driver: None,
            compiler: None,
        }
    }
}

impl Options {
    /// What [`Device::open`] takes.
    pub fn new() -> Options {
        Options::default()
    }

    /// In which of the allowed orders a simulated GPU runs the work.
    pub fn schedule(self, schedule: Schedule) -> Options {
        Options { schedule, ..self }
    }

    /// The most device memory that is taken, on each device; no more than it has. Above 2 MiB it should be
    /// a multiple of that, in which memory is taken then.
    pub fn memory_bytes(mut self, bytes: u64) -> Options {
        self.settings.memory_bytes = Some(bytes);
        self
    }

    /// The most pinned host memory that is taken; 64 GiB if not set.
    pub fn pinned_bytes(mut self, pinned_bytes: u64) -> Options {
        self.settings.pinned_bytes = pinned_bytes;
        self
    }

    /// How much more device memory is reserved than buffers ever held at once: 12 percent if not set,
    /// and more rather than a wait. Set so that it waits, it is kept as far as it can be.
    pub fn spare(mut self, spare: Option<Spare>) -> Options {
        self.settings.spare = spare;
        self
    }

    /// Every call waits for its work, so that an error is the error of the call that gives it. For
    /// debugging: nothing overlaps. Says so when the device is opened.
    pub fn synchronous(mut self) -> Options {
        self.settings.is_synchronous = true;
        self
    }

    /// Who is told what a person should know: that a wait takes long, that calls are synchronous.
    /// The standard error stream if not set.
    pub fn notice(mut self, notice: fn(&str)) -> Options {
        self.settings.notice = notice;
        self
    }

    /// The library of the CUDA driver, where it is not to be looked for.
    ///
    /// To load a library is to run it. So nobody does it without saying so:
    ///
    /// ```compile_fail
    /// let options = sidestream::device::Options::new().driver("libanything.so");
    /// ```
    ///
    /// # Safety
    /// The file is NVIDIA's driver, or a library that may be loaded into this process and whose functions keep to
    /// the driver's types and rules.
    pub unsafe fn driver(self, file: impl Into<PathBuf>) -> Options {
        let driver = Some(file.into());
        Options { driver, ..self }
    }

    /// The library of NVRTC, which compiles kernels in CUDA C++, where it is not to be looked for.
    ///
    /// # Safety
    /// As for [`Options::driver`], of NVRTC.
    pub unsafe fn compiler(self, file: impl Into<PathBuf>) -> Options {
        let compiler = Some(file.into());
        Options { compiler, ..self }
    }

    /// Nothing is tracked: no call waits for another stream by itself.
    ///
    /// # Safety
    /// Every wait is the caller's, as in CUDA: work on two streams that touches the same memory
    /// races unless an event orders it, and memory that is dropped while it is in use is given to
    /// the next owner at once.
    pub unsafe fn untracked(mut self) -> Options {
        self.settings.is_tracking = false;
        self
    }
}

impl Device {
    /// Opens a device by its name: `cuda:0` for the first of NVIDIA's devices, `cuda:1` for the
    /// second; `sim:h200`, `sim:a100` and so on for a simulated one
    /// ([`Profile::NAMES`](crate::engine::Profile::NAMES)), `sim:FILE.toml` for one that a file describes. `cuda` is `cuda:0`. `auto` is `cuda:0` where that
    /// can be opened and else `sim:h200`; which of them, and why, it says as a notice
    /// ([`Options::notice`]).
    ///
    /// Every call opens a machine of its own; [`Device::open_all`] opens several devices of one.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`](crate::error::Error::NoSuchDevice) with the names that there are, or with the reason why there is no CUDA:
    /// which files were tried for the driver's library, and what it said.
    pub fn open(name: &str) -> Result<Device> {
        Device::open_with(name, &Options::new())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_with(name: &str, options: &Options) -> Result<Device> {
        let mut devices = Device::open_all(&[name], options)?;
        Ok(devices.remove(0))
    }

    /// Opens several devices of one machine, whose streams can wait for each other: all real or all
    /// simulated.
    ///
    /// # Errors
    /// As [`Device::open`]; also if no name is given, or real and simulated devices are mixed.
    pub fn open_all(names: &[&str], options: &Options) -> Result<Vec<Device>> {
        Ok(Device::on(open::machine(names, options)?, options))
    }

    /// The devices of a back end.
    pub fn on(backend: Arc<dyn Backend>, options: &Options) -> Vec<Device> {
        let runtime = Runtime::new(backend, &options.settings);
        if options.settings.is_synchronous {
            (options.settings.notice)(
                "sidestream: every call waits for its work (synchronous mode); nothing overlaps",
            );
        }
        let ids = 0..runtime.devices.len() as u32;
        ids.map(|id| Device::of(&runtime, DeviceId(id))).collect()
    }

    /// Its name, such as `sim:h200`.
    pub fn name(&self) -> &str {
        &self.caps().name
    }

    /// What it can do.
    pub fn caps(&self) -> &Caps {
        &self.runtime.backend.devices()[self.id.0 as usize]
    }

    /// Its number among the devices of its machine.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// A stream of ordinary priority. The name is for people: it appears in traces and reports. Use
    /// few names: a stream that is dropped is kept for the next one of its name and priority, and
    /// each stream that there is makes all others cost a little more.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn stream(&self, name: &str) -> Result<Stream> {
        self.stream_with_priority(name, 0)
    }

    /// A stream of this priority: lower is more urgent, within [`Caps::priorities`]. It decides whose
    /// kernels start first when several could; it orders nothing.
    ///
    /// # Errors
    /// If there is no such priority, or what the driver answers.
    #[track_caller]
    pub fn stream_with_priority(&self, name: &str, priority: i32) -> Result<Stream> {
        let streams = &self.runtime.device(self.id).streams;
        let at = Location::caller();
        streams.get(&self.runtime, self.id, name, priority, true, at)
    }

    /// A stream that leaves no event behind each of its calls, which saves the host a record a call.
    ///
    /// For chains of work that nobody waits for in the middle, such as the items of a
    /// [pipeline](crate::pipeline).
    ///
    /// # Ordering
    /// What waits for one of its calls (another stream, the host, a
    /// [`Pending`](crate::buffer::Pending)) waits for all that the stream was given by then: never
    /// too little, perhaps too much. A [`Stream::record_event`] marks a point that can be waited for
    /// exactly; what waits for that, or comes behind it, waits for no call before it again.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn unmarked_stream(&self, name: &str) -> Result<Stream> {
        let streams = &self.runtime.device(self.id).streams;
        let at = Location::caller();
        streams.get(&self.runtime, self.id, name, 0, false, at)
    }

    /// Pinned host memory for `len` values; their content is unspecified.
    ///
    /// # Ordering
    /// Waits for nothing, unless the pinned memory runs out: then for copies out of memory that was
    /// dropped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::error::Error::OutOfMemory) with the sizes.
    #[track_caller]
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<Pinned<T>> {
        self.pinned_at(len, Location::caller())
    }

    pub(crate) fn pinned_at<T: Pod>(&self, len: usize, at: Place) -> Result<Pinned<T>> {
        let bytes = size_of_all::<T>("pinned", len)?;
        let block = self.runtime.pinned.take(&self.runtime, bytes, None, at)?;
        Ok(Pinned::new(block, len))
    }

    /// Pins memory that the program has, where it is, so that it is uploaded and downloaded like any
    /// other [`Pinned`]. [`Pinned::into_vec`] gives it back.
    ///
    /// Pinning takes the driver far longer than [`Device::pinned`], which takes from a cache: it is for
    /// memory that is large, or used again and again. It does not count for
    /// [`Options::pinned_bytes`].
    ///
    /// ```
    /// use sidestream::device::Device;
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = device.stream("work")?;
    /// let values = device.register(vec![1u32, 2, 3])?;
    /// let mut buffer = stream.alloc(3)?;
    /// let values = stream.upload(values, buffer.view_mut())?.synchronize()?;
    /// let values: Vec<u32> = values.into_vec()?;
    /// assert_eq!(values, [1, 2, 3]);
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Waits for no work of its own. What was registered before and dropped is unpinned and freed first
    /// if its uses are over; the driver may wait for the whole device for that.
    ///
    /// Dropping what it gives does none of this: the memory is kept with its last uses, and goes with the next
    /// call of this function, with [`Device::empty_cache`], or with the machine.
    ///
    /// # Errors
    /// The vector comes back with the error: [`Error::Refused`](crate::error::Error::Refused) with the
    /// driver's 712 if some of it is pinned already, [`Error::Invalid`](crate::error::Error::Invalid) in a
    /// function on the host, which may not call the driver, or what else the driver answers.
    #[track_caller]
    pub fn register<T: Pod>(&self, values: Vec<T>) -> Result<Pinned<T>, Refused<Vec<T>>> {
        Pinned::register(&self.runtime, values, Location::caller())
    }

    /// Makes a kernel ready, which its first launch on this device would do otherwise: compiles and loads
    /// what has to be.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::kernel::{Kernel, Write};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let zero = Kernel::<(Write<u32>,)>::on_host("zero", |_, (x,)| x.fill(0));
    /// device.prepare(&zero)?;
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// Puts nothing into any stream. Holds up the host until the kernel is there, which on real hardware
    /// may take milliseconds, and while the driver loads it, it may wait for the device.
    ///
    /// # Errors
    /// [`Error::NoForm`](crate::error::Error::NoForm) if the kernel has no form for this machine, or what the
    /// compiler or the driver says about it.
    pub fn prepare<A>(&self, kernel: &Kernel<A>) -> Result<()> {
        self.runtime.check()?;
        let prepared = self.runtime.backend.prepare(self.id, kernel.code());
        self.runtime.seen(prepared)
    }

    /// Waits until all work of all its streams is over.
    ///
    /// # Ordering
    /// Holds up the host.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let at = Location::caller();
        self.runtime.check()?;
        for stream in self.runtime.device(self.id).streams.all(&self.runtime) {
            stream.finish_at(at)?;
        }
        Ok(())
    }

    /// What its memory was used for so far: what buffers hold, what is reserved for them, what is
    /// still in use, and how allocations came to their memory. The device is asked what is over. In a child of a fork,
    /// which has no device, all of it is zero.
    ///
    /// # Panics
    /// In a kernel in Rust.
    #[track_caller]
    pub fn statistics(&self) -> Statistics {
        self.runtime.refuse_kernels();
        let memories = &self.runtime.device(self.id).memories;
        memories.statistics(&self.runtime, Location::caller())
    }

    /// How many waits were inserted between streams so far, on all devices of the machine.
    pub fn waits_inserted(&self) -> u64 {
        self.runtime.waits_inserted.load(Ordering::Relaxed)
    }

    /// What the pinned memory of the machine was used for so far. As [`Device::statistics`].
    ///
    /// # Panics
    /// In a kernel in Rust.
    #[track_caller]
    pub fn pinned_statistics(&self) -> Statistics {
        self.runtime.refuse_kernels();
        self.runtime
            .pinned
            .statistics(&self.runtime, Location::caller())
    }

    /// Gives memory that nobody holds back to the machine, device and pinned, and unpins and frees what was
    /// registered and dropped.
    ///
    /// # Ordering
    /// Holds up the host until the work that uses it is over; the driver may wait for the whole
    /// device.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn empty_cache(&self) -> Result<()> {
        self.runtime.check()?;
        let at = Location::caller();
        self.runtime
            .device(self.id)
            .memories
            .empty(&self.runtime, at)?;
        self.runtime.pinned.empty(&self.runtime, at)?;
        self.runtime.registered.empty(&self.runtime, at)
    }

    pub(crate) fn of(runtime: &Arc<Runtime>, id: DeviceId) -> Device {
        let runtime = Arc::clone(runtime);
        Device { runtime, id }
    }
}

impl Stream {
    /// Its device.
    pub fn device(&self) -> Device {
        Device::of(&self.runtime, self.core.device)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:?})", self.name())
    }
}
