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
mod tree;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sidestream::engine::Profile;

/// Registers the functions and classes of the Rust libraries that the Python package uses.
#[pymodule]
fn _sidestream(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DIRECT_BYTES", prefetch::DIRECT_BYTES)?;
    module.add("SIMULATED", PyTuple::new(py, Profile::NAMES)?)?;
    module.add("TraceError", py.get_type::<failure::TraceError>())?;
    module.add("ProgramError", py.get_type::<failure::ProgramError>())?;
    module.add("DeviceError", py.get_type::<failure::DeviceError>())?;
    module.add("RaceError", py.get_type::<failure::RaceError>())?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<event::Event>()?;
    module.add_class::<fetch::Outbox>()?;
    module.add_class::<fetch::Posted>()?;
    module.add_class::<array::DeviceArray>()?;
    module.add_class::<prefetch::Ring>()?;
    module.add_class::<prefetch::Ticket>()?;
    module.add_class::<prefetch::Lease>()?;
    module.add_class::<check::Recorder>()?;
    module.add_class::<tree::Shape>()?;
    module.add_class::<diagnose::Tables>()?;
    module.add_class::<batcher::Requests>()?;
    module.add_class::<batcher::BatcherStatistics>()?;
    module.add_class::<batcher::Times>()?;
    #[cfg(feature = "images")]
    images::add(module)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(command::said, module)?)?;
    module.add_function(wrap_pyfunction!(command::peaks, module)?)?;
    module.add_function(wrap_pyfunction!(devices::caps, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::diagnose, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::digest, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::ranks, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::printable, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose::traces, module)?)?;
    module.add_function(wrap_pyfunction!(program::check_program, module)?)?;
    module.add_function(wrap_pyfunction!(program::explored, module)?)?;
    module.add_function(wrap_pyfunction!(array::note_stream, module)?)?;
    module.add_function(wrap_pyfunction!(prefetch::references, module)?)?;
    module.add_function(wrap_pyfunction!(prefetch::empty_cache, module)?)?;
    module.add_function(wrap_pyfunction!(prefetch::cached_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(tree::flatten, module)?)?;
    Ok(())
}
