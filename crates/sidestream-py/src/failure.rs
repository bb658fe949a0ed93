//! Errors as Python's exceptions.

use std::io;
use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use sidestream::error::Error;

pyo3::create_exception!(
    sidestream,
    TraceError,
    PyValueError,
    "The file is not a readable trace. The text names the file, what is wrong with it and what to do."
);

pyo3::create_exception!(
    sidestream,
    ProgramError,
    PyValueError,
    "The text is not a stream program. The message names the place, what is wrong there and what to do."
);

pyo3::create_exception!(
    sidestream,
    RaceError,
    PyRuntimeError,
    "Two accesses that are not ordered. The text names both, and the call that orders them."
);

/// The system's error for a file, as Python's own functions raise it, such as `FileNotFoundError`. `None` if the
/// error has no system code.
pub fn of_system(path: &Path, error: &io::Error) -> Option<PyErr> {
    let code = error.raw_os_error()?;
    // Python picks the class by the code, and expects the text without it.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_owned();
    Some(PyOSError::new_err((
        code,
        text,
        path.as_os_str().to_owned(),
    )))
}

pyo3::create_exception!(
    sidestream,
    DeviceError,
    PyRuntimeError,
    "The device cannot be opened, refused a call, or is lost. The text says what was asked, why it failed and what to do."
);

/// Converts an error of the runtime.
pub fn of_runtime(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory(_) => PyMemoryError::new_err(text),
        Error::Invalid { .. } => PyValueError::new_err(text),
        _ => DeviceError::new_err(text),
    }
}
