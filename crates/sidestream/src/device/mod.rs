//! Devices, on which streams are made and memory is allocated.

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

/// A device. Clones are handles of one device.
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

/// Options for opening devices.
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
    /// Returns the options that [`Device::open`] uses.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets in which of the allowed orders a simulated GPU runs the work.
    pub fn schedule(self, schedule: Schedule) -> Options {
        Options { schedule, ..self }
    }

    /// Sets the maximum amount of device memory that is reserved on each device; it cannot be more than the device has.
    /// Above 2 MiB it should be a multiple of 2 MiB, because memory is then reserved in such steps.
    pub fn memory_bytes(mut self, bytes: u64) -> Options {
        self.settings.memory_bytes = Some(bytes);
        self
    }

    /// Sets the maximum amount of pinned host memory that is reserved; 64 GiB by default.
    pub fn pinned_bytes(mut self, pinned_bytes: u64) -> Options {
        self.settings.pinned_bytes = pinned_bytes;
        self
    }

    /// Sets how much more device memory may be reserved than the peak that buffers held: 12 percent by default, and
    /// more if an allocation would otherwise have to wait. With [`Spare::waits`] set, allocation waits and keeps to the
    /// limit as far as possible.
    pub fn spare(mut self, spare: Option<Spare>) -> Options {
        self.settings.spare = spare;
        self
    }

    /// Makes every call wait for its work, so that an error is returned by the call that caused it. For debugging:
    /// nothing overlaps. A notice reports this mode when the device is opened.
    pub fn synchronous(mut self) -> Options {
        self.settings.is_synchronous = true;
        self
    }

    /// Sets the function that receives notices for the user, for instance that a wait takes long or that calls are
    /// synchronous. By default notices are written to standard error.
    pub fn notice(mut self, notice: fn(&str)) -> Options {
        self.settings.notice = notice;
        self
    }

    /// Sets the file of the CUDA driver's library, instead of searching for it.
    ///
    /// Loading a library runs its code, so this requires `unsafe`:
    ///
    /// ```compile_fail
    /// let options = sidestream::device::Options::new().driver("libanything.so");
    /// ```
    ///
    /// # Safety
    /// The file is NVIDIA's driver, or a library that may be loaded into this process and whose functions keep to the
    /// driver's types and rules.
    pub unsafe fn driver(self, file: impl Into<PathBuf>) -> Options {
        let driver = Some(file.into());
        Options { driver, ..self }
    }

    /// Sets the file of the NVRTC library, which compiles kernels in CUDA C++, instead of searching for it.
    ///
    /// # Safety
    /// As for [`Options::driver`], with NVRTC in place of the driver.
    pub unsafe fn compiler(self, file: impl Into<PathBuf>) -> Options {
        let compiler = Some(file.into());
        Options { compiler, ..self }
    }

    /// Turns tracking off: no call waits for another stream by itself.
    ///
    /// # Safety
    /// The caller is responsible for every wait, as in CUDA: work on two streams that touches the same memory races
    /// unless an event orders it, and memory that is dropped while in use is given to its next owner at once.
    pub unsafe fn untracked(mut self) -> Options {
        self.settings.is_tracking = false;
        self
    }
}

impl Device {
    /// Opens a device by its name: `cuda:0` for the first NVIDIA GPU, `cuda:1` for the second; `sim:h200`, `sim:a100`
    /// and so on for a simulated one ([`Profile::NAMES`](crate::engine::Profile::NAMES)); `sim:FILE.toml` for one that
    /// a file describes. `cuda` is `cuda:0`. `auto` is `cuda:0` if it can be opened, else `sim:h200`; a notice says
    /// which device was opened and why ([`Options::notice`]).
    ///
    /// Every call opens a new machine; [`Device::open_all`] opens several devices of one machine.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`](crate::error::Error::NoSuchDevice) with the names that exist, or with the reason why
    /// CUDA cannot be used: which files were tried for the driver's library, and what loading them returned.
    pub fn open(name: &str) -> Result<Device> {
        Device::open_with(name, &Options::new())
    }

    /// Like [`Device::open`], with options.
    ///
    /// # Errors
    /// As for [`Device::open`].
    pub fn open_with(name: &str, options: &Options) -> Result<Device> {
        let mut devices = Device::open_all(&[name], options)?;
        Ok(devices.remove(0))
    }

    /// Opens several devices of one machine, whose streams can wait for each other. The devices are either all real
    /// or all simulated.
    ///
    /// # Errors
    /// As for [`Device::open`]; also if no name is given, or real and simulated devices are mixed.
    pub fn open_all(names: &[&str], options: &Options) -> Result<Vec<Device>> {
        Ok(Device::on(open::machine(names, options)?, options))
    }

    /// Returns the devices of a back end.
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

    /// Returns the device's name, such as `sim:h200`.
    pub fn name(&self) -> &str {
        &self.caps().name
    }

    /// Returns the device's capabilities.
    pub fn caps(&self) -> &Caps {
        &self.runtime.backend.devices()[self.id.0 as usize]
    }

    /// Returns the device's number within its machine.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns a stream of default priority. The name is for people: it appears in traces and reports. Use few names:
    /// a stream that is dropped is kept for the next one with its name and priority, and each existing stream makes
    /// the use of all others slightly more expensive.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn stream(&self, name: &str) -> Result<Stream> {
        self.stream_with_priority(name, 0)
    }

    /// Returns a stream of this priority: lower is more urgent, within [`Caps::priorities`]. The priority decides
    /// whose kernels start first when several could start; it orders nothing.
    ///
    /// # Errors
    /// If the device has no such priority, or any error that the driver returns.
    #[track_caller]
    pub fn stream_with_priority(&self, name: &str, priority: i32) -> Result<Stream> {
        let streams = &self.runtime.device(self.id).streams;
        let at = Location::caller();
        streams.get(&self.runtime, self.id, name, priority, true, at)
    }

    /// Returns a stream that records no event after each of its calls, which saves the host one record per call.
    ///
    /// For chains of work whose intermediate results are never waited for, such as the items of a
    /// [pipeline](crate::pipeline).
    ///
    /// # Ordering
    /// A wait for one of its calls (by another stream, the host, or a [`Pending`](crate::buffer::Pending)) covers all
    /// work submitted to the stream by the time of the wait: never too little, perhaps too much. A
    /// [`Stream::record_event`] marks a point that can be waited for exactly; whatever waits for that event need not
    /// wait again for earlier calls of the stream.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn unmarked_stream(&self, name: &str) -> Result<Stream> {
        let streams = &self.runtime.device(self.id).streams;
        let at = Location::caller();
        streams.get(&self.runtime, self.id, name, 0, false, at)
    }

    /// Allocates pinned host memory for `len` values; their content is unspecified.
    ///
    /// # Ordering
    /// Does not wait, unless the pinned memory runs out: then it waits for copies that still use memory that was
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

    /// Pins memory of the program in place, so that it is uploaded and downloaded like any other [`Pinned`].
    /// [`Pinned::into_vec`] gives it back.
    ///
    /// Pinning takes the driver far longer than [`Device::pinned`], which allocates from a cache: use it for memory
    /// that is large or used repeatedly. It does not count towards [`Options::pinned_bytes`].
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
    /// Does not wait for work. Memory that was registered earlier and dropped is first unpinned and freed if its uses
    /// are complete; for that the driver may wait for the whole device.
    ///
    /// Dropping the returned memory neither unpins nor frees it: the memory is kept with its last uses, and is unpinned
    /// and freed by the next call of this function, by [`Device::empty_cache`], or with the machine.
    ///
    /// # Errors
    /// The error returns the vector: [`Error::Refused`](crate::error::Error::Refused) with the driver's code 712 if
    /// some of it is already pinned, [`Error::Invalid`](crate::error::Error::Invalid) in a function on the host,
    /// which may not call the driver, or any other error that the driver returns.
    #[track_caller]
    pub fn register<T: Pod>(&self, values: Vec<T>) -> Result<Pinned<T>, Refused<Vec<T>>> {
        Pinned::register(&self.runtime, values, Location::caller())
    }

    /// Compiles and loads a kernel for this device, so that its first launch does not have to.
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
    /// Enqueues nothing. Blocks the host until the kernel is loaded, which on real hardware may take milliseconds;
    /// the driver may wait for the device while loading.
    ///
    /// # Errors
    /// [`Error::NoForm`](crate::error::Error::NoForm) if the kernel has no form for this machine, or any error that
    /// the compiler or the driver returns.
    pub fn prepare<A>(&self, kernel: &Kernel<A>) -> Result<()> {
        self.runtime.check()?;
        let prepared = self.runtime.backend.prepare(self.id, kernel.code());
        self.runtime.seen(prepared)
    }

    /// Waits until all work in all streams of the device is complete.
    ///
    /// # Ordering
    /// Blocks the host.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let at = Location::caller();
        self.runtime.check()?;
        for stream in self.runtime.device(self.id).streams.all(&self.runtime) {
            stream.finish_at(at)?;
        }
        Ok(())
    }

    /// Returns statistics of the device's memory: the bytes that buffers hold, that are reserved for them, and that are
    /// still in use, and how allocations were served. Queries the device for the work that is complete. In a child of a
    /// fork, which has no device, all numbers are zero.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn statistics(&self) -> Statistics {
        self.runtime.refuse_kernels();
        let memories = &self.runtime.device(self.id).memories;
        memories.statistics(&self.runtime, Location::caller())
    }

    /// Returns the number of waits inserted between streams so far, on all devices of the machine.
    pub fn waits_inserted(&self) -> u64 {
        self.runtime.waits_inserted.load(Ordering::Relaxed)
    }

    /// Returns statistics of the machine's pinned memory, as [`Device::statistics`] does for device memory.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn pinned_statistics(&self) -> Statistics {
        self.runtime.refuse_kernels();
        self.runtime
            .pinned
            .statistics(&self.runtime, Location::caller())
    }

    /// Returns unused memory to the machine, both device and pinned memory, and unpins and frees memory that was
    /// registered and then dropped.
    ///
    /// # Ordering
    /// Blocks the host until the work that uses that memory is complete; the driver may wait for the whole device.
    ///
    /// # Errors
    /// The error of work that failed on the device.
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
    /// Returns the stream's device.
    pub fn device(&self) -> Device {
        Device::of(&self.runtime, self.core.device)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:?})", self.name())
    }
}
