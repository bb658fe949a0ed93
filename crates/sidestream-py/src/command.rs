//! The command `sidestream`, for Python.

use std::ffi::OsString;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sidestream::engine::Profile;
use sidestream_cli::Refused;

use crate::devices;
use crate::failure::DeviceError;

/// Runs the command with these arguments, the first of which is its own name. Returns its exit code; help and
/// wrong arguments end the process.
#[pyfunction]
pub fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| sidestream_cli::command(args))
}

/// What `sidestream overlap` says, as JSON and as text. Other threads of Python run meanwhile.
#[pyfunction]
pub fn overlap(
    py: Python<'_>,
    device: &str,
    batch: &str,
    count: &str,
    work: &str,
) -> PyResult<(String, String)> {
    let device = devices::resolved(device)?;
    // In one word with its option, so that no value is taken for another option.
    let args = [
        format!("--device={device}"),
        format!("--batch={batch}"),
        format!("--count={count}"),
        format!("--work={work}"),
    ];
    let args = args.each_ref().map(String::as_str);
    let said = py.detach(|| sidestream_cli::overlap(&args));
    let (json, text) = said.map_err(|refused| match refused {
        Refused::Device(why) => DeviceError::new_err(why),
        Refused::Job(why) => PyValueError::new_err(why),
    })?;
    // Whoever prints a text in Python adds the end of the last line.
    Ok((json.to_string(), text.trim_end().to_owned()))
}

/// What a device of this name does at most: operations in single precision a second, and bytes of its memory a
/// second. None if there is no profile of it.
#[pyfunction]
pub fn peaks(device_name: &str) -> Option<(f64, f64)> {
    // "80 GB" in a datasheet is "80GB" to the driver.
    let plain = |name: &str| name.to_lowercase().replace(' ', "");
    let mut profiles = Profile::NAMES
        .iter()
        .filter_map(|name| Profile::named(name));
    let profile = profiles.find(|profile| plain(&profile.name) == plain(device_name))?;
    Some((profile.flops_per_s(), profile.memory_bytes_per_s()))
}
