//! The extension module `sidestream._sidestream`.
//!
//! Python receives JSON and text (reports), objects that belong to this process's devices (streams, events, batches),
//! and the recorder of `check`. Except for `DeviceArray`, the classes that users meet are written in Python, in
//! `python/sidestream`, where they have type annotations, docstrings and pickling without further work.

mod array;
mod batcher;
mod check;
mod command;
mod devices;
mod diagnose;
mod dlpack;
mod event;
mod failure;
mod fetch;
#[cfg_attr(not(target_os = "linux"), path = "frames_elsewhere.rs")]
mod frames;
#[cfg(feature = "images")]
mod images;
mod prefetch;
mod process;
mod program;
mod stream;
mod timeline;

/// The functions and classes of the Rust libraries that the Python package uses.
#[pyo3::pymodule]
mod _sidestream {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;
    use sidestream::engine::Profile;

    #[pymodule_export]
    use crate::{
        array::{DeviceArray, note_stream},
        batcher::{BatcherStatistics, Requests, Times},
        check::Recorder,
        command::{command, parse_suppressions, peaks, said},
        devices::caps,
        diagnose::{Tables, check_options, diagnose, digest, printable, ranks, traces},
        event::Event,
        failure::{DeviceError, ProgramError, RaceError, TraceError},
        fetch::{Outbox, Posted},
        prefetch::{Ring, Ticket, cached_bytes, empty_cache},
        program::{check_program, explored},
        stream::Stream,
        timeline::Timeline,
    };

    #[pymodule_init]
    fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("SIMULATED", PyTuple::new(module.py(), Profile::NAMES)?)?;
        module.add("DIRECT_BYTES", crate::prefetch::DIRECT_BYTES)?;
        #[cfg(feature = "images")]
        crate::images::add(module)?;
        Ok(())
    }
}
