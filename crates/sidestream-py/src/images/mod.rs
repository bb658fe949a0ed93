//! Picture loading for `sidestream.images`.

mod augment;
mod engines;
mod load;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    sidestream,
    ImageError,
    PyValueError,
    "A picture, or the folder, list or archive that it is in, cannot be read. The text names the file, the problem and what to do."
);

/// Converts an error of the picture loader.
fn of_images(error: sidestream_images::Error) -> PyErr {
    use sidestream_images::Error;
    let text = error.to_string();
    match error {
        Error::Memory(_) => PyMemoryError::new_err(text),
        Error::Options(_) | Error::State(_) | Error::Slab { .. } | Error::Region { .. } => {
            PyValueError::new_err(text)
        }
        Error::Worker(_) => PyRuntimeError::new_err(text),
        _ => ImageError::new_err(text),
    }
}

/// Adds the classes and functions of this module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ImageError", module.py().get_type::<ImageError>())?;
    module.add_class::<augment::AugmentPlan>()?;
    module.add_class::<augment::AugmentBatch>()?;
    module.add_class::<engines::ImageEngines>()?;
    module.add_class::<load::ImageLoader>()?;
    module.add_class::<load::ImageBatch>()?;
    module.add_function(wrap_pyfunction!(augment::check_operator, module)?)?;
    module.add_function(wrap_pyfunction!(augment::operators, module)?)?;
    module.add_function(wrap_pyfunction!(load::write_sample_images, module)?)?;
    module.add_function(wrap_pyfunction!(load::image_decoder, module)?)?;
    Ok(())
}
