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
    "The file is no trace that can be read. The text names the file, what is wrong with it and what to do."
);

pyo3::create_exception!(
    sidestream,
    ProgramError,
    PyValueError,
    "The text is no stream program. The text of the error names the place, what is wrong there and what to do."
);

pyo3::create_exception!(
    sidestream,
    RaceError,
    PyRuntimeError,
    "Two accesses that nothing orders. The text says what they are and which call orders them."
);

/// What the system says about a file, as Python's own functions raise it: `FileNotFoundError` and the
/// like. Nothing if the error is not the system's.
pub fn of_system(path: &Path, error: &io::Error) -> Option<PyErr> {
    let code = error.raw_os_error()?;
    // Python picks the class by the code, and wants the text without it.
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

/// What the runtime refused.
pub fn of_runtime(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory(_) => PyMemoryError::new_err(text),
        Error::Invalid { .. } => PyValueError::new_err(text),
        _ => DeviceError::new_err(text),
    }
}
