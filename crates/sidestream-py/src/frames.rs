//! The lines of Python in which protected memory is accessed.
//!
//! Python's functions for this allocate or need the GIL, which the faulting thread may have released: numpy and
//! ctypes do so while they copy bytes. So they are read from memory ([`python::lines`]). What is read is compared at the
//! start with what Python itself reports ([`learn`]); if the two differ, accesses have no place.

use pyo3::ffi;
use pyo3::prelude::*;

use host_guard::lines::{self, Frames};
use sidestream_inject::python;

/// Has the page guard take the place in the program from here, if this Python's lines can be read.
pub fn learn(py: Python<'_>) {
    if agrees(py).unwrap_or(false) {
        lines::come_from(lines::Source {
            place,
            read,
            stack: false,
        });
    }
}

/// Whether the lines of this thread are those that Python reports.
fn agrees(py: Python<'_>) -> PyResult<bool> {
    // SAFETY: the thread is attached. The frame is borrowed, so a new reference is taken.
    let mut frame = unsafe {
        Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast::<ffi::PyObject>())
    };
    let mut lines = python::lines().take(Frames::MOST);
    while let (Some(place), Some(known)) = (lines.next(), &frame) {
        if known.getattr("f_lineno")?.extract::<u32>()? != place.line() {
            return Ok(false);
        }
        let back = known.getattr("f_back")?;
        frame = Some(back).filter(|back| !back.is_none());
    }
    Ok(python::lines().next().is_some())
}

/// The identity of the line that this thread executes; zeros if it executes no Python.
fn place() -> (usize, usize) {
    let innermost = python::lines().next();
    innermost.map_or((0, 0), |place| (place.id as usize, 0))
}

/// Reads the Python stack of this thread.
fn read(into: &mut Frames) {
    let mut text = [0; 1024];
    for place in python::lines() {
        let Some(line) = into.next((place.id as usize, 0)) else {
            return;
        };
        line.number = place.line() as i32;
        let length = place.file(&mut text);
        line.file.keep_end(&text[..length]);
        let length = place.function(&mut text);
        // Since Python 3.11 the names of what is around a function come before its own.
        let own = text[..length].rsplit(|byte| *byte == b'.').next();
        line.name.keep_end(own.unwrap_or_default());
    }
}
