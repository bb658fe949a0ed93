//! The devices of the process. Each is opened once and stays open.
//!
//! All streams and memory of a device then belong to one runtime, and can wait for each other whichever part of the
//! package made them. A real device is opened in its primary context, which PyTorch uses too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pyo3::prelude::*;
use sidestream::device::Device;
use sidestream::error::Error;

use crate::failure::{DeviceError, of_runtime};
use crate::process::PerProcess;

static OPENED: PerProcess<HashMap<String, Device>> = PerProcess::new();

/// The process in which the driver was started, or 0. In a forked child of that process, the driver does not work.
static HAS_DRIVER: AtomicU32 = AtomicU32::new(0);

/// Opens the device with this name: `cuda`, `cuda:1`, `sim:h200` and so on. `auto` is `cuda` if there is a GPU, and
/// otherwise `sim:h200`. `cuda` is PyTorch's current device if PyTorch has initialized CUDA, and otherwise the first.
pub fn open(name: &str) -> PyResult<Device> {
    open_or(name, "\"sim:h200\" is a simulated GPU that runs anywhere")
}

/// Like [`open`], but if there is no such GPU, the error begins with `instead`, which says what to do.
pub fn open_or(name: &str, instead: &str) -> PyResult<Device> {
    Python::attach(|py| {
        let full = full_name(py, name)?;
        // Other threads run while the driver starts, and no thread waits for the lock while it has the GIL.
        py.detach(|| match name {
            "auto" => auto(&full),
            _ => opened(&full, instead),
        })
    })
}

/// Opens the GPU, or a simulated one if there is none. A failure in a forked child is an error, not a reason to
/// simulate.
fn auto(name: &str) -> PyResult<Device> {
    match opened(name, "") {
        Err(refused) if !is_forked() => opened("sim:h200", "").map_err(|_| refused),
        opened => opened,
    }
}

/// The full name of one device: for `cuda`, PyTorch's current GPU; for `auto`, the device that it opens.
pub fn resolved(name: &str) -> PyResult<String> {
    match name {
        "auto" => open(name).map(|device| self::name(&device).to_owned()),
        _ => Python::attach(|py| full_name(py, name)),
    }
}

/// The name of a device, its memory in bytes, its memory bandwidth in bytes per second, its single-precision
/// operations per second, its link's bytes per second, and the lowest and highest stream priority number (the most
/// and the least urgent).
type Figures = (String, u64, f64, f64, f64, (i32, i32));

/// Returns the capabilities of a device.
#[pyfunction]
pub fn caps(py: Python<'_>, name: &str) -> PyResult<Figures> {
    let device = open(name)?;
    let caps = py.detach(|| device.caps().clone());
    Ok((
        self::name(&device).to_owned(),
        caps.memory_bytes,
        caps.memory_bytes_per_s,
        caps.flops_per_s,
        caps.link_bytes_per_s,
        caps.priorities,
    ))
}

/// The device's name in Python: `cuda:0`, without the vendor's product name.
pub fn name(device: &Device) -> &str {
    let name = device.name();
    name.split_once(" (").map_or(name, |(short, _)| short)
}

/// The device's CUDA ordinal; `None` for a simulated one.
pub fn ordinal(device: &Device) -> Option<u32> {
    name(device).strip_prefix("cuda:")?.parse().ok()
}

/// The module `torch`, if the program has imported it.
pub fn torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    // A module that is still being imported lacks some attributes.
    Ok((!torch.is_none() && torch.hasattr("cuda")?).then_some(torch))
}

fn full_name(py: Python<'_>, name: &str) -> PyResult<String> {
    if !["cuda", "auto"].contains(&name) {
        return Ok(name.to_owned());
    }
    let mut current = 0u32;
    if let Some(torch) = torch(py)? {
        let cuda = torch.getattr("cuda")?;
        if cuda.call_method0("is_initialized")?.is_truthy()? {
            current = cuda.call_method0("current_device")?.extract()?;
        }
    }
    Ok(format!("cuda:{current}"))
}

/// Whether the driver was started in a process from which this one was forked.
fn is_forked() -> bool {
    let process = HAS_DRIVER.load(Relaxed);
    process != 0 && process != std::process::id()
}

fn opened(name: &str, instead: &str) -> PyResult<Device> {
    let is_real = name.starts_with("cuda");
    if is_real && is_forked() {
        return Err(DeviceError::new_err(format!(
            "device {name:?} cannot be used: this process was forked from one that had opened a GPU, and CUDA does \
             not survive a fork; start the process with multiprocessing's method \"spawn\", or open the device \
             only after the fork"
        )));
    }
    let mut devices = OPENED.get().lock();
    if let Some(device) = devices.get(name) {
        return Ok(device.clone());
    }
    let before = HAS_DRIVER.load(Relaxed);
    if is_real {
        // The process is noted before the driver starts, since a fork may happen in between.
        HAS_DRIVER.store(std::process::id(), Relaxed);
    }
    let device = Device::open(name).map_err(|error| {
        HAS_DRIVER.store(before, Relaxed);
        refused(name, error, instead)
    })?;
    devices.insert(name.to_owned(), device.clone());
    Ok(device)
}

fn refused(name: &str, error: Error, instead: &str) -> PyErr {
    match &error {
        Error::NoSuchDevice { why, .. } if name.starts_with("cuda") => DeviceError::new_err(
            format!("device {name:?} cannot be opened; {instead} ({why})"),
        ),
        _ => of_runtime(error),
    }
}
