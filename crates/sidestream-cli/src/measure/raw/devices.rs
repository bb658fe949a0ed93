//! Which devices the driver has, without opening one.

use std::ffi::c_int;
use std::path::Path;

use sidestream::cuda::driver::{CuDevice, Driver, SUCCESS};

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

/// A driver that runs.
pub struct Started {
    pub driver: Driver,
    /// The CUDA that it is for: 13000 is 13.0.
    pub version: c_int,
    /// How many devices it has.
    pub count: u32,
}

/// A device that the driver has.
pub struct Found {
    /// The name that the driver gives it.
    pub name: String,
    /// Its multiprocessors.
    pub sms: u32,
    /// So many threads run on each at once.
    pub threads_per_sm: u32,
    pub memory_bytes: u64,
    /// What its memory moves, from its clock and its width.
    pub memory_gb_s: f64,
    number: CuDevice,
}

impl Started {
    /// Loads the driver, from this file or wherever the system has it, and starts it.
    pub fn open(file: Option<&Path>) -> Result<Started, Failure> {
        // SAFETY: the user of the command names the driver, if the system's own is not meant.
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

    /// All its devices.
    pub fn all(&self) -> Result<Vec<Found>, Failure> {
        let all = (0..self.count).map(|number| Found::of(&self.driver, number));
        all.collect()
    }
}

impl Found {
    /// The device of this number, which the driver has.
    pub fn of(driver: &Driver, number: u32) -> Result<Found, Failure> {
        let (mut device, mut memory_bytes, mut text) = (0, 0, [0u8; 256]);
        // SAFETY: the driver has started; it writes to these variables, and a text with its end into
        // `text`, which is as long as it is told.
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
            // Twice in each cycle.
            memory_gb_s: 2.0 * clock_hz * width_bytes / 1e9,
        })
    }
}

impl Found {
    /// The most and the least urgent priority of its streams. None if no context can be had, as on a GPU that another
    /// process has for itself. The context stays until the process ends.
    pub fn priorities(&self, driver: &Driver) -> Option<(i32, i32)> {
        let (mut context, mut least, mut most) = (0, 0, 0);
        // SAFETY: the driver has started, and the device is its own; it writes to these variables, and the context that
        // is put on top is taken off again.
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

fn attribute(driver: &Driver, device: CuDevice, which: c_int) -> Result<c_int, Failure> {
    let mut value = 0;
    // SAFETY: the device is the driver's; one number is written.
    let code = unsafe { (driver.cuDeviceGetAttribute)(&mut value, which, device) };
    accepted(driver, "cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// A version of CUDA as people write it: `13.0`.
pub fn in_words(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
