//! The extension module `sidestream._sidestream`.
//!
//! It hands over texts: JSON, and pages for people. The classes that users meet are Python's, in
//! `python/sidestream`, where they have types, documentation and pickles for nothing.

mod check;
mod diagnose;
mod failure;
mod program;

use pyo3::prelude::*;

/// What the Python package asks of the Rust libraries.
#[pymodule]
fn _sidestream(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("TraceError", module.py().get_type::<failure::TraceError>())?;
    module.add(
        "ProgramError",
        module.py().get_type::<failure::ProgramError>(),
    )?;
    module.add("RaceError", module.py().get_type::<failure::RaceError>())?;
    module.add_class::<check::Recorder>()?;
    module.add_function(wrap_pyfunction!(diagnose::diagnose, module)?)?;
    module.add_function(wrap_pyfunction!(program::check_program, module)?)?;
    Ok(())
}
