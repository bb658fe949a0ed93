//! The command `sidestream`, for Python.

use std::ffi::OsString;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::engine::{Dtype, Profile};
use sidestream_cli::Refused;
use sidestream_cli::suppress::{Place, Suppression, parse};

use crate::devices;
use crate::failure::DeviceError;

/// Runs the command with these arguments, the first of which is its own name. Returns its exit code; help and
/// wrong arguments end the process.
#[pyfunction]
pub fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| sidestream_cli::command(args))
}

/// What `sidestream overlap` or `roofline` prints for a device with these options, as JSON and as text. Other Python
/// threads run meanwhile.
#[pyfunction]
pub fn said(
    py: Python<'_>,
    verb: &str,
    device: &str,
    options: Vec<(String, String)>,
) -> PyResult<(String, String)> {
    let device = devices::resolved(device)?;
    // Option and value are joined into one argument, so that no value is parsed as another option.
    let options = options.iter().map(|(name, value)| match value.as_str() {
        "" => format!("--{name}"),
        value => format!("--{name}={value}"),
    });
    let args: Vec<String> = std::iter::once(format!("--device={device}"))
        .chain(options)
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = py.detach(|| match verb {
        "roofline" => sidestream_cli::roofline(&args),
        _ => sidestream_cli::overlap(&args),
    });
    let (json, text) = said.map_err(|refused| match refused {
        Refused::Device(why) => DeviceError::new_err(why),
        Refused::Job(why) => PyValueError::new_err(why),
    })?;
    // In Python, `print` adds the final newline.
    Ok((json.to_string(), text.trim_end().to_owned()))
}

/// The peak rates of the device with this name: operations per second in this number type, and memory bytes per
/// second. `None` if there is no profile of the device, or its profile has no such peak.
#[pyfunction]
pub fn peaks(device_name: &str, dtype: &str) -> PyResult<Option<(f64, f64)>> {
    let Some(dtype) = Dtype::named(dtype) else {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        return Err(PyValueError::new_err(format!(
            "dtype is {dtype:?}; give one of {names}, or a torch.dtype of these"
        )));
    };
    let profile = Profile::of_gpu(device_name);
    Ok(profile.and_then(|profile| {
        let flops_per_s = profile.peak_flops_per_s(dtype)?;
        Some((flops_per_s, profile.memory_bytes_per_s()))
    }))
}

/// The file, line, reason, function and kernel of a suppression, and where it stands.
type Parts = (
    Option<String>,
    Option<u64>,
    String,
    Option<String>,
    Option<String>,
    String,
);

/// The suppressions in a text, which stands in the file of this name.
#[pyfunction]
pub fn parse_suppressions(text: &str, path: &str) -> PyResult<Vec<Parts>> {
    let parts = |it: Suppression| match it.place {
        Place::Line(file, line) => (Some(file), Some(line), it.reason, None, None, it.source),
        Place::Function(name) => (None, None, it.reason, Some(name), None, it.source),
        Place::Kernel(name) => (None, None, it.reason, None, Some(name), it.source),
    };
    let found = parse(text, path).map_err(PyValueError::new_err)?;
    Ok(found.into_iter().map(parts).collect())
}
