//! The process's driver and its devices.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::driver::{Code, CuContext, CuDevice, Driver, SUCCESS};
use super::library::NotLoaded;
use crate::backend::Caps;

/// The initialized driver. There is one for the whole process, and it is never released: other libraries use the same
/// contexts, and driver threads may run until the process ends.
pub(super) struct Opened {
    pub driver: Driver,
    /// Number of devices.
    pub count: u32,
    /// The primary contexts retained so far, by ordinal.
    contexts: Mutex<Vec<Option<CuContext>>>,
}

/// The reason why CUDA cannot be used here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absent {
    /// The driver's library could not be loaded.
    NotLoaded(NotLoaded),
    /// The driver was loaded but cannot be initialized.
    DoesNotStart {
        /// The driver's file.
        file: String,
        /// The driver's error code.
        code: Code,
        /// The driver's description of the error.
        why: String,
    },
    /// The driver is for a CUDA older than 12.
    TooOld {
        /// The driver's file.
        file: String,
        /// The driver's version: 11080 is 11.8.
        version: i32,
    },
    /// The driver works but finds no device.
    NoDevice {
        /// The driver's file.
        file: String,
    },
}

/// The oldest supported driver version: it has all functions and accepts all PTX that this library uses.
const OLDEST: i32 = 12_000;
/// `CUDA_ERROR_NO_DEVICE`, from `cuInit`.
const NO_DEVICE: Code = 100;

/// Returns the initialized driver, from this file or, for `None`, from where the system finds it.
///
/// # Safety
/// As for [`Driver::load`].
pub(super) unsafe fn opened(file: Option<&Path>) -> Result<&'static Opened, Absent> {
    static OPENED: Mutex<Vec<(Option<PathBuf>, &'static Opened)>> = Mutex::new(Vec::new());
    let mut known = OPENED.lock();
    if let Some((_, opened)) = known.iter().find(|(at, _)| at.as_deref() == file) {
        return Ok(opened);
    }
    // SAFETY: the caller's promise.
    let opened = Box::leak(Box::new(unsafe { Opened::start(file)? }));
    known.push((file.map(Path::to_owned), opened));
    Ok(opened)
}

impl Opened {
    /// # Safety
    /// As for [`Driver::load`].
    unsafe fn start(file: Option<&Path>) -> Result<Opened, Absent> {
        // SAFETY: the caller's promise.
        let driver = unsafe { Driver::load(file) }.map_err(Absent::NotLoaded)?;
        let file = driver.file.clone();
        // SAFETY: takes no pointer.
        match unsafe { (driver.cuInit)(0) } {
            SUCCESS => {}
            NO_DEVICE => return Err(Absent::NoDevice { file }),
            code => {
                let why = driver.words(code);
                return Err(Absent::DoesNotStart { file, code, why });
            }
        }
        let (mut version, mut count) = (0, 0);
        // SAFETY: each writes one integer.
        let codes = unsafe {
            [
                (driver.cuDriverGetVersion)(&mut version),
                (driver.cuDeviceGetCount)(&mut count),
            ]
        };
        if let Some(&code) = codes.iter().find(|&&code| code != SUCCESS) {
            let why = driver.words(code);
            return Err(Absent::DoesNotStart { file, code, why });
        }
        if version < OLDEST {
            return Err(Absent::TooOld { file, version });
        }
        if count < 1 {
            return Err(Absent::NoDevice { file });
        }
        Ok(Opened {
            driver,
            count: count as u32,
            contexts: Mutex::new(vec![None; count as usize]),
        })
    }

    /// Returns the driver's handle of a device and its primary context, which is created if it does not exist.
    pub(super) fn context(&self, ordinal: u32) -> Result<(CuDevice, CuContext), Code> {
        let mut device = 0;
        // SAFETY: writes one integer.
        worked(unsafe { (self.driver.cuDeviceGet)(&mut device, ordinal as c_int) })?;
        let mut contexts = self.contexts.lock();
        if let Some(Some(context)) = contexts.get(ordinal as usize) {
            return Ok((device, *context));
        }
        let mut context = 0;
        // SAFETY: writes one handle.
        worked(unsafe { (self.driver.cuDevicePrimaryCtxRetain)(&mut context, device) })?;
        if let Some(kept) = contexts.get_mut(ordinal as usize) {
            *kept = Some(context);
        }
        Ok((device, context))
    }

    /// Returns a device's capabilities.
    pub(super) fn caps(&self, ordinal: u32, device: CuDevice, priorities: (i32, i32)) -> Caps {
        let attribute = |which: c_int| f64::from(self.attribute(device, which));
        let mut memory_bytes = 0;
        // SAFETY: writes one number.
        unsafe { (self.driver.cuDeviceTotalMem_v2)(&mut memory_bytes, device) };
        let major = self.attribute(device, COMPUTE_MAJOR);
        let minor = self.attribute(device, COMPUTE_MINOR);
        let lanes = attribute(MULTIPROCESSORS) * lanes_per_multiprocessor(major, minor);
        // Both clocks are in kilohertz; memory moves data twice a cycle, and a fused multiply-add counts as two
        // operations.
        let memory = 2.0 * 1e3 * attribute(MEMORY_CLOCK) * attribute(MEMORY_BUS_BITS) / 8.0;
        Caps {
            name: format!("cuda:{ordinal} ({})", self.name(device)),
            memory_bytes: memory_bytes as u64,
            memory_bytes_per_s: memory,
            flops_per_s: 2.0 * 1e3 * attribute(CLOCK) * lanes,
            link_bytes_per_s: link_bytes_per_s(
                self.attribute(device, PCI_DOMAIN),
                self.attribute(device, PCI_BUS),
                self.attribute(device, PCI_DEVICE),
            ),
            priorities,
            extends_memory: false,
            shares_events: true,
        }
    }

    pub(super) fn name(&self, device: CuDevice) -> String {
        let mut text = [0; 128];
        // SAFETY: writes a string of at most this length, with its terminating zero.
        let code = unsafe { (self.driver.cuDeviceGetName)(text.as_mut_ptr(), 128, device) };
        let bytes = text.map(|c| c as u8);
        match CStr::from_bytes_until_nul(&bytes) {
            Ok(name) if code == SUCCESS => name.to_string_lossy().into_owned(),
            _ => "unnamed".to_owned(),
        }
    }

    /// Returns zero if the driver does not know the attribute.
    pub(super) fn attribute(&self, device: CuDevice, which: c_int) -> i32 {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe { (self.driver.cuDeviceGetAttribute)(&mut value, which, device) };
        value
    }
}

fn worked(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

// Numbers of attributes, as in `cuda.h`.
const CLOCK: c_int = 13;
const MULTIPROCESSORS: c_int = 16;
const PCI_BUS: c_int = 33;
const PCI_DEVICE: c_int = 34;
const MEMORY_CLOCK: c_int = 36;
const MEMORY_BUS_BITS: c_int = 37;
const PCI_DOMAIN: c_int = 50;
pub(super) const COMPUTE_MAJOR: c_int = 75;
pub(super) const COMPUTE_MINOR: c_int = 76;

/// Single-precision lanes, from the table of arithmetic throughput in NVIDIA's programming guide.
fn lanes_per_multiprocessor(major: i32, minor: i32) -> f64 {
    match (major, minor) {
        (7, _) | (8, 0) => 64.0,
        _ => 128.0,
    }
}

/// Returns the bandwidth of one direction of the link: its raw rate times the share available to data, which is 0.88
/// on an H200 (55.4 of 63 GB/s). If the system does not report the link's speed, PCIe 4 with 16 lanes is assumed.
fn link_bytes_per_s(domain: i32, bus: i32, device: i32) -> f64 {
    let folder = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0");
    let number = |file: &str| -> Option<f64> {
        let text = std::fs::read_to_string(format!("{folder}/{file}")).ok()?;
        let number = text.split_whitespace().next()?.parse().ok()?;
        (number > 0.0).then_some(number)
    };
    let transfers = number("max_link_speed").unwrap_or(16.0);
    let lanes = number("max_link_width")
        .filter(|&n| n <= 32.0)
        .unwrap_or(16.0);
    transfers * 1e9 / 8.0 * lanes * (128.0 / 130.0) * 0.88
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NotLoaded(why @ NotLoaded::NoFile { tried }) => match tried.as_slice() {
                // Only the file that the caller named was tried.
                [_] => write!(f, "{why}"),
                _ => write!(f, "NVIDIA's driver is not installed: {why}"),
            },
            Absent::NotLoaded(why) => write!(f, "{why}"),
            Absent::DoesNotStart { file, code, why } => {
                write!(f, "the driver in {file} does not start ({code}): {why}")
            }
            Absent::TooOld { file, version } => write!(
                f,
                "the driver in {file} is for CUDA {}.{}; install one for CUDA 12 or later",
                version / 1000,
                version % 1000 / 10
            ),
            Absent::NoDevice { file } => write!(
                f,
                "the driver in {file} finds no device; run `nvidia-smi`, and check whether \
                 CUDA_VISIBLE_DEVICES hides the devices"
            ),
        }
    }
}

impl std::error::Error for Absent {}
