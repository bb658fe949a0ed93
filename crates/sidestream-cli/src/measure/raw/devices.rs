//! Lists the driver's devices without opening one.

use std::ffi::c_int;
use std::path::Path;

use sidestream::cuda::driver::{CuDevice, Driver, SUCCESS};
use sidestream::engine::Profile;

use super::accepted;
use crate::failure::Failure;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`, in kHz.
const MEMORY_CLOCK_KHZ: c_int = 36;
/// `CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH`.
const MEMORY_BUS_BITS: c_int = 37;

/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS_PER_MULTIPROCESSOR: c_int = 39;

/// `CU_DEVICE_ATTRIBUTE_CLOCK_RATE`, in kHz.
const CLOCK_KHZ: c_int = 13;
/// `CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE`, in bytes.
const L2_BYTES: c_int = 38;
/// `CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT`.
const COPY_ENGINES: c_int = 40;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];
/// `CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR`.
const BLOCKS_PER_MULTIPROCESSOR: c_int = 106;

/// A driver that has been initialized.
pub struct Started {
    pub driver: Driver,
    /// The CUDA version of the driver: 13000 is 13.0.
    pub version: c_int,
    /// The number of devices.
    pub count: u32,
}

/// A device that the driver lists.
pub struct Found {
    /// The name that the driver gives it.
    pub name: String,
    /// The number of multiprocessors.
    pub sms: u32,
    /// Threads that run on each multiprocessor at once.
    pub threads_per_sm: u32,
    pub memory_bytes: u64,
    /// The memory bandwidth, from the memory's clock and bus width.
    pub memory_gb_s: f64,
    number: CuDevice,
}

impl Started {
    /// Loads the driver, from this file or from where the system has it, and initializes it.
    pub fn open(file: Option<&Path>) -> Result<Started, Failure> {
        // SAFETY: the user of the command names the driver, if not the system's own.
        let driver = unsafe { Driver::load(file) }.map_err(Failure::input)?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: the driver's own sequence, `cuInit` first; it writes to these variables.
        unsafe {
            accepted(&driver, "cuInit", (driver.cuInit)(0))?;
            let code = (driver.cuDriverGetVersion)(&mut version);
            accepted(&driver, "cuDriverGetVersion", code)?;
            let code = (driver.cuDeviceGetCount)(&mut count);
            accepted(&driver, "cuDeviceGetCount", code)?;
        }
        Ok(Started {
            driver,
            version,
            count: u32::try_from(count).unwrap_or(0),
        })
    }

    /// Returns all devices of the driver.
    pub fn all(&self) -> Result<Vec<Found>, Failure> {
        let all = (0..self.count).map(|number| Found::of(&self.driver, number));
        all.collect()
    }
}

impl Found {
    /// Returns the device with this index, which must exist.
    pub fn of(driver: &Driver, number: u32) -> Result<Found, Failure> {
        let (mut device, mut memory_bytes, mut text) = (0, 0, [0u8; 256]);
        // SAFETY: the driver is initialized; it writes to these variables, and a zero-terminated string into `text`, whose
        // length is passed.
        unsafe {
            let code = (driver.cuDeviceGet)(&mut device, number as c_int);
            accepted(driver, "cuDeviceGet", code)?;
            let length = text.len() as c_int;
            let code = (driver.cuDeviceGetName)(text.as_mut_ptr().cast(), length, device);
            accepted(driver, "cuDeviceGetName", code)?;
            let code = (driver.cuDeviceTotalMem_v2)(&mut memory_bytes, device);
            accepted(driver, "cuDeviceTotalMem", code)?;
        }
        let end = text.iter().position(|&byte| byte == 0);
        let name = &text[..end.unwrap_or(text.len())];
        let clock_hz = 1e3 * f64::from(attribute(driver, device, MEMORY_CLOCK_KHZ)?);
        let width_bytes = f64::from(attribute(driver, device, MEMORY_BUS_BITS)?) / 8.0;
        let threads = attribute(driver, device, THREADS_PER_MULTIPROCESSOR)?;
        Ok(Found {
            threads_per_sm: u32::try_from(threads).unwrap_or(0),
            name: String::from_utf8_lossy(name).into_owned(),
            sms: u32::try_from(attribute(driver, device, MULTIPROCESSORS)?).unwrap_or(0),
            memory_bytes: memory_bytes as u64,
            number: device,
            // Two transfers in each cycle.
            memory_gb_s: 2.0 * clock_hz * width_bytes / 1e9,
        })
    }
}

impl Found {
    /// Returns the compute capability: 9 and 0 for 9.0.
    pub fn capability(&self, driver: &Driver) -> Result<[c_int; 2], Failure> {
        let [major, minor] = CAPABILITY.map(|which| attribute(driver, self.number, which));
        Ok([major?, minor?])
    }

    /// Returns the most and the least urgent stream priority. `None` if no context can be created, as on a GPU in exclusive use
    /// by another process. The context stays until the process ends.
    pub fn priorities(&self, driver: &Driver) -> Option<(i32, i32)> {
        let (mut context, mut least, mut most) = (0, 0, 0);
        // SAFETY: the driver is initialized, and the device is one of its own; it writes to these variables, and the context
        // that is pushed is popped again.
        let code = unsafe {
            if (driver.cuDevicePrimaryCtxRetain)(&mut context, self.number) != SUCCESS
                || (driver.cuCtxPushCurrent_v2)(context) != SUCCESS
            {
                return None;
            }
            let code = (driver.cuCtxGetStreamPriorityRange)(&mut least, &mut most);
            (driver.cuCtxPopCurrent_v2)(&mut context);
            code
        };
        (code == SUCCESS).then_some((most, least))
    }
}

/// Returns the description of a device. Of its figures, only those under `[chip]` are the device's.
pub(super) fn described(driver: &Driver, number: u32) -> Result<Profile, Failure> {
    let found = Found::of(driver, number)?;
    let of = |which| attribute(driver, found.number, which).map(f64::from);
    // Single-precision lanes of one multiprocessor: CUDA programming guide, arithmetic throughput.
    let lanes = match found.capability(driver)? {
        [..=7, _] | [8, 0] => 64.0,
        _ => 128.0,
    };
    let mut profile = Profile::h200();
    profile.name = found.name;
    profile.sms = f64::from(found.sms);
    profile.clock_ghz = of(CLOCK_KHZ)? / 1e6;
    profile.threads_per_sm = f64::from(found.threads_per_sm);
    profile.blocks_per_sm = of(BLOCKS_PER_MULTIPROCESSOR)?;
    profile.memory_gib = (found.memory_bytes as f64 / f64::from(1 << 30)).round();
    profile.memory_gb_s = found.memory_gb_s.round();
    profile.l2_mib = of(L2_BYTES)? / f64::from(1 << 20);
    let lanes_hz = 2.0 * profile.sms * lanes * profile.clock_ghz;
    profile.fp32_tflops = (lanes_hz / 1e2).round() / 10.0;
    profile.copy_engines = of(COPY_ENGINES)?;
    Ok(profile)
}

/// Returns each figure under `[chip]` with its place in the file and its source.
pub fn chip(profile: &Profile, said: &str) -> Vec<(&'static str, f64, String)> {
    let lanes = "multiprocessors, their lanes and the highest clock";
    [
        ("chip.sms", profile.sms, said),
        ("chip.clock_ghz", profile.clock_ghz, said),
        ("chip.threads_per_sm", profile.threads_per_sm, said),
        ("chip.blocks_per_sm", profile.blocks_per_sm, said),
        ("chip.memory_gib", profile.memory_gib, said),
        ("chip.memory_gb_s", profile.memory_gb_s, said),
        ("chip.l2_mib", profile.l2_mib, said),
        ("chip.fp32_tflops", profile.fp32_tflops, lanes),
        ("chip.copy_engines", profile.copy_engines, said),
    ]
    .map(|(place, value, source)| (place, value, source.to_owned()))
    .into()
}

fn attribute(driver: &Driver, device: CuDevice, which: c_int) -> Result<c_int, Failure> {
    let mut value = 0;
    // SAFETY: the device is one of the driver's; one number is written.
    let code = unsafe { (driver.cuDeviceGetAttribute)(&mut value, which, device) };
    accepted(driver, "cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// Returns a CUDA version as people write it: `13.0`.
pub fn in_words(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
