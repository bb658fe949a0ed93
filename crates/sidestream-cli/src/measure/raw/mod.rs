//! The driver's own calls, without the runtime: the baseline for the runtime's figures.
//!
//! Everything that is created here lasts until the process ends, so that no handle is ever used after it is destroyed. That
//! suits a measurement and nothing else.

pub mod devices;
pub mod job;

use std::ffi::{CString, c_int, c_uint};
use std::path::Path;
use std::ptr::null_mut;

use sidestream::cuda::driver::{
    Code, CuAddress, CuContext, CuEvent, CuFunction, CuModule, CuStream, Driver,
    EVENT_DISABLE_TIMING, HOST_PORTABLE, STREAM_NON_BLOCKING, SUCCESS,
};
use sidestream::engine::Profile;
use sidestream::kernel::Grid;

use crate::failure::Failure;
use devices::{Found, Started, in_words};

/// A device driven by the driver's own calls, in the primary context, which the runtime uses too.
///
/// It is used only by the thread that opened it.
pub struct Gpu {
    driver: Driver,
    number: u32,
    context: CuContext,
    /// The name that the driver gives it.
    pub name: String,
    /// The CUDA version of the driver, such as `13.0`.
    pub cuda: String,
    /// The number of multiprocessors.
    pub sms: u32,
    /// Threads that run on each multiprocessor at once.
    pub threads_per_sm: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
}

/// A stream without implicit ordering with the default stream.
#[derive(Clone, Copy)]
pub struct Stream(CuStream);

/// An event without timing.
#[derive(Clone, Copy)]
pub struct Event(CuEvent);

/// A kernel.
#[derive(Clone, Copy)]
pub struct Function(CuFunction);

/// Device memory, or pinned host memory. The host itself never touches it.
#[derive(Clone, Copy)]
pub struct Memory {
    address: CuAddress,
    bytes: usize,
}

impl Gpu {
    /// Loads the driver, from this file or from where the system has it, and opens a device.
    pub fn open(file: Option<&Path>, number: u32) -> Result<Gpu, Failure> {
        let instead = "--device sim:h200 (in Python device=\"sim:h200\")";
        Gpu::open_or(file, number, instead)
    }

    /// Like [`Gpu::open`], for a caller to which a simulated GPU is given as `instead` says.
    pub fn open_or(file: Option<&Path>, number: u32, instead: &str) -> Result<Gpu, Failure> {
        let absent = |why| {
            Failure::device(format!(
                "there is no GPU to measure; that needs an NVIDIA GPU and its driver on this machine: {why}; choose a simulated GPU, which needs neither: {instead}"
            ))
        };
        let Started {
            driver,
            version,
            count,
        } = Started::open(file).map_err(absent)?;
        if number >= count {
            return Err(Failure::device(format!(
                "there is no device cuda:{number}; the driver has {count}, counted from 0"
            )));
        }
        let found = Found::of(&driver, number)?;
        let (mut device, mut context) = (0, 0);
        // SAFETY: the driver is initialized, and writes to these variables.
        unsafe {
            let code = (driver.cuDeviceGet)(&mut device, number as c_int);
            accepted(&driver, "cuDeviceGet", code)?;
            let code = (driver.cuDevicePrimaryCtxRetain)(&mut context, device);
            accepted(&driver, "cuDevicePrimaryCtxRetain", code)?;
        }
        let gpu = Gpu {
            driver,
            number,
            context,
            cuda: in_words(version),
            name: found.name,
            sms: found.sms,
            threads_per_sm: found.threads_per_sm,
            memory_bytes: found.memory_bytes,
        };
        gpu.enter()?;
        Ok(gpu)
    }

    /// Returns the description of the device. Of its figures, only those under `[chip]` are the device's.
    pub fn described(&self) -> Result<Profile, Failure> {
        devices::described(&self.driver, self.number)
    }

    /// Returns the file from which the driver was loaded.
    pub fn file(&self) -> &str {
        &self.driver.file
    }

    /// Makes the context current on this thread. Needed again after calls to the runtime.
    pub fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context was retained and is never released.
        let code = unsafe { (self.driver.cuCtxSetCurrent)(self.context) };
        self.accepted("cuCtxSetCurrent", code)
    }

    /// Returns the kernel `name` of this PTX.
    pub fn function(&self, ptx: &str, name: &str) -> Result<Function, Failure> {
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| Failure::input("the PTX or the name of a kernel contains a zero byte"))
        };
        let (ptx, name) = (text(ptx)?, text(name)?);
        let (mut module, mut function): (CuModule, CuFunction) = (0, 0);
        // SAFETY: both strings end with a zero byte and outlive the calls; there are no options.
        unsafe {
            let image = ptx.as_ptr().cast();
            let code =
                (self.driver.cuModuleLoadDataEx)(&mut module, image, 0, null_mut(), null_mut());
            self.accepted("cuModuleLoadDataEx", code)?;
            let code = (self.driver.cuModuleGetFunction)(&mut function, module, name.as_ptr());
            self.accepted("cuModuleGetFunction", code)?;
        }
        Ok(Function(function))
    }

    pub fn stream(&self) -> Result<Stream, Failure> {
        let mut stream = 0;
        // SAFETY: the driver writes the handle.
        let code = unsafe {
            (self.driver.cuStreamCreateWithPriority)(&mut stream, STREAM_NON_BLOCKING, 0)
        };
        self.accepted("cuStreamCreateWithPriority", code)?;
        Ok(Stream(stream))
    }

    pub fn event(&self) -> Result<Event, Failure> {
        let mut event = 0;
        // SAFETY: the driver writes the handle.
        let code = unsafe { (self.driver.cuEventCreate)(&mut event, EVENT_DISABLE_TIMING) };
        self.accepted("cuEventCreate", code)?;
        Ok(Event(event))
    }

    /// Allocates device memory.
    pub fn memory(&self, bytes: usize) -> Result<Memory, Failure> {
        let mut address = 0;
        // SAFETY: the driver writes the address.
        let code = unsafe { (self.driver.cuMemAlloc_v2)(&mut address, bytes) };
        self.accepted("cuMemAlloc", code)?;
        Ok(Memory { address, bytes })
    }

    /// Allocates pinned host memory.
    pub fn pinned(&self, bytes: usize) -> Result<Memory, Failure> {
        let mut address = 0;
        // SAFETY: the driver writes the address.
        let code = unsafe { (self.driver.cuMemHostAlloc)(&mut address, bytes, HOST_PORTABLE) };
        self.accepted("cuMemHostAlloc", code)?;
        Ok(Memory { address, bytes })
    }

    // ---------------------------------------------------------------- measured calls

    #[inline]
    pub fn record(&self, event: Event, stream: Stream) -> Result<(), Failure> {
        // SAFETY: both were made here and are never destroyed.
        let code = unsafe { (self.driver.cuEventRecord)(event.0, stream.0) };
        self.accepted("cuEventRecord", code)
    }

    #[inline]
    pub fn wait(&self, stream: Stream, event: Event) -> Result<(), Failure> {
        // SAFETY: both were made here and are never destroyed.
        let code = unsafe { (self.driver.cuStreamWaitEvent)(stream.0, event.0, 0) };
        self.accepted("cuStreamWaitEvent", code)
    }

    #[inline]
    pub fn synchronize(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: the stream was made here and is never destroyed.
        let code = unsafe { (self.driver.cuStreamSynchronize)(stream.0) };
        self.accepted("cuStreamSynchronize", code)
    }

    /// Blocks until all work of the context is complete, including the runtime's.
    pub fn synchronize_all(&self) -> Result<(), Failure> {
        // SAFETY: the context is this thread's.
        let code = unsafe { (self.driver.cuCtxSynchronize)() };
        self.accepted("cuCtxSynchronize", code)
    }

    /// Allocates memory in stream order and frees it again.
    #[inline]
    pub fn allocate_and_free(&self, bytes: usize, stream: Stream) -> Result<(), Failure> {
        let mut address = 0;
        // SAFETY: the stream was made here; the driver writes the address, which is not kept.
        unsafe {
            let code = (self.driver.cuMemAllocAsync)(&mut address, bytes, stream.0);
            self.accepted("cuMemAllocAsync", code)?;
            let code = (self.driver.cuMemFreeAsync)(address, stream.0);
            self.accepted("cuMemFreeAsync", code)
        }
    }

    /// Copies as much as fits into `to`.
    #[inline]
    pub fn copy(&self, from: Memory, to: Memory, stream: Stream) -> Result<(), Failure> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: both are at least that long and are never freed, and the host touches neither.
        let code =
            unsafe { (self.driver.cuMemcpyAsync)(to.address, from.address, bytes, stream.0) };
        self.accepted("cuMemcpyAsync", code)
    }

    /// Launches a kernel whose parameters are addresses and whole numbers, in one dimension.
    ///
    /// # Safety
    /// The arguments are those of the kernel, which stays within the memory that they name.
    #[inline]
    pub unsafe fn launch<const N: usize>(
        &self,
        function: Function,
        grid: Grid,
        mut args: [u64; N],
        stream: Stream,
    ) -> Result<(), Failure> {
        // The driver reads only as many bytes of a number as the parameter has, and the lowest bytes come first.
        let mut params = args.each_mut().map(|arg| std::ptr::from_mut(arg).cast());
        let ([blocks, ..], [threads, ..]) = (grid.blocks, grid.threads);
        let (one, shared): (c_uint, c_uint) = (1, 0);
        // SAFETY: the caller promises the arguments; the driver copies them before it returns.
        let code = unsafe {
            (self.driver.cuLaunchKernel)(
                function.0,
                blocks,
                one,
                one,
                threads,
                one,
                one,
                shared,
                stream.0,
                params.as_mut_ptr(),
                null_mut(),
            )
        };
        self.accepted("cuLaunchKernel", code)
    }

    #[inline]
    fn accepted(&self, call: &str, code: Code) -> Result<(), Failure> {
        accepted(&self.driver, call, code)
    }
}

impl Memory {
    /// Returns the address of the first byte.
    pub fn address(self) -> CuAddress {
        self.address
    }

    /// Returns the `bytes` bytes from `start`.
    pub fn part(self, start: usize, bytes: usize) -> Memory {
        let start = start.min(self.bytes);
        Memory {
            address: self.address + start as u64,
            bytes: bytes.min(self.bytes - start),
        }
    }
}

#[inline]
fn accepted(driver: &Driver, call: &str, code: Code) -> Result<(), Failure> {
    if code == SUCCESS {
        return Ok(());
    }
    refused(driver, call, code)
}

#[cold]
fn refused(driver: &Driver, call: &str, code: Code) -> Result<(), Failure> {
    Err(Failure::input(format!(
        "{call} returned {code}, {}",
        driver.words(code)
    )))
}
