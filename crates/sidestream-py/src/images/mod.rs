//! Pictures for `sidestream.images`.

mod augment;
mod engines;
mod load;

use pyo3::prelude::*;

/// The classes and functions of this part.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
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
