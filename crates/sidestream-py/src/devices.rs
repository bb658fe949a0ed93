//! The devices of the process: each is opened once and stays open.
//!
//! All streams and memory of a device then belong to one machine, and can wait for each other whichever part of
//! the package made them. A real device is opened in its primary context, which is PyTorch's too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pyo3::prelude::*;
use sidestream::device::Device;
use sidestream::error::Error;

use crate::failure::{DeviceError, of_runtime};
use crate::process::PerProcess;

static OPENED: PerProcess<HashMap<String, Device>> = PerProcess::new();

/// The process in which the driver was started, or 0. In a child of that it does not work.
static HAS_DRIVER: AtomicU32 = AtomicU32::new(0);

/// The device of this name: `cuda`, `cuda:1`, `sim:h200` and so on; `auto` is `cuda` where there is one and else
/// `sim:h200`. `cuda` is PyTorch's current device once PyTorch uses CUDA, and else the first.
pub fn open(name: &str) -> PyResult<Device> {
    open_or(name, "\"sim:h200\" is a simulated GPU that runs anywhere")
}

/// The same; where there is no such GPU, the error says first what to do instead.
pub fn open_or(name: &str, instead: &str) -> PyResult<Device> {
    Python::attach(|py| {
        let full = full_name(py, name)?;
        // Other threads run while a driver starts, and nobody waits for the lock with the interpreter in hand.
        py.detach(|| match name {
            "auto" => auto(&full),
            _ => opened(&full, instead),
        })
    })
}

/// The GPU if it can be opened. One that another process has opened is there, and an error.
fn auto(name: &str) -> PyResult<Device> {
    match opened(name, "") {
        Err(refused) if !is_forked() => opened("sim:h200", "").map_err(|_| refused),
        opened => opened,
    }
}

/// The same name, of one device: `cuda` is PyTorch's current GPU, and `auto` what is opened for it.
pub fn resolved(name: &str) -> PyResult<String> {
    match name {
        "auto" => open(name).map(|device| self::name(&device).to_owned()),
        _ => Python::attach(|py| full_name(py, name)),
    }
}

/// The name of a device here, its memory in bytes, the bytes a second of that, operations a second in single precision,
/// the bytes a second of its link, and the most and the least urgent priority of a stream.
type Figures = (String, u64, f64, f64, f64, (i32, i32));

/// What a device can do.
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

/// What Python calls the device: `cuda:0`, without the words of its maker.
pub fn name(device: &Device) -> &str {
    let name = device.name();
    name.split_once(" (").map_or(name, |(short, _)| short)
}

/// Its number among CUDA's devices; none for a simulated one.
pub fn ordinal(device: &Device) -> Option<u32> {
    name(device).strip_prefix("cuda:")?.parse().ok()
}

/// PyTorch, where the program has imported it.
pub fn torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    // A module that is being imported has not all its parts.
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

/// Whether the driver was started in a process that this one was forked from.
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
        // Before it is so: a fork may come meanwhile.
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
