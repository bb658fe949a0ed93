//! The ring behind `sidestream.prefetch`.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sidestream::device::Device;
use sidestream::prefetch::{self, Leaf, Statistics};

use crate::array::{DeviceArray, Held};
use crate::devices;
use crate::dlpack::{self, DataType, Form};
use crate::failure::of_runtime;
use crate::stream::stream_of;

/// Slots of device memory that batches go through.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Ring {
    ring: prefetch::Ring,
    device: Device,
}

/// A batch on its way to the device.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Ticket {
    ticket: prefetch::Ticket,
    device: Device,
}

/// A batch on the device, for one who makes arrays of it.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Lease {
    held: Arc<Held>,
}

/// Shape and type of a part.
type Meta = (Vec<i64>, String);

#[pymethods]
impl Ring {
    #[new]
    fn new(py: Python<'_>, device: &Bound<'_, PyAny>, depth: usize) -> PyResult<Ring> {
        let device = devices::named(device)?;
        let ring = py.detach(|| prefetch::Ring::new(&device, depth));
        Ok(Ring {
            ring: ring.map_err(of_runtime)?,
            device,
        })
    }

    /// The name of its device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.device)
    }

    /// Copies host memory to a free slot, each part given as its address, its bytes, and whether it is page-locked and
    /// copied from where it is. The caller keeps all of it during the call, and those until `wait_source`.
    fn put(&self, py: Python<'_>, parts: Vec<(u64, u64, bool)>) -> PyResult<Option<Ticket>> {
        let leaves: Vec<Leaf> = parts
            .into_iter()
            .map(|(address, bytes, direct)| Leaf {
                address,
                bytes,
                direct,
            })
            .collect();
        // SAFETY: the Python package keeps the arrays behind these addresses, as this function demands. That
        // nobody writes them meanwhile is what its documentation asks of loaders, as PyTorch does.
        let ticket = py.detach(|| unsafe { self.ring.put(&leaves) });
        let ticket = ticket.map_err(of_runtime)?;
        Ok(ticket.map(|ticket| Ticket {
            ticket,
            device: self.device.clone(),
        }))
    }

    fn ask(&self, waits: bool) {
        self.ring.ask(waits);
    }

    fn pause(&self, pauses: bool) {
        self.ring.pause(pauses);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.ring.close());
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Statistics {
            batches,
            bytes,
            direct_bytes,
            slots,
            grown,
            retired,
            warnings,
        } = self.ring.statistics();
        let dict = PyDict::new(py);
        dict.set_item("batches", batches)?;
        dict.set_item("bytes", bytes)?;
        dict.set_item("direct_bytes", direct_bytes)?;
        dict.set_item("slots", slots)?;
        dict.set_item("grown", grown)?;
        dict.set_item("retired", retired)?;
        dict.set_item("warnings", warnings)?;
        Ok(dict)
    }
}

#[pymethods]
impl Ticket {
    fn wait_source(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.ticket.wait_source()).map_err(of_runtime)
    }

    fn is_source_free(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.ticket.is_source_free())
            .map_err(of_runtime)
    }

    /// The batch for work on this stream, which waits for the copy.
    fn hand_over(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Lease> {
        let stream = stream_of(&self.device, stream)?;
        let lease = py.detach(|| self.ticket.hand_over(&stream));
        let held = Held::new(lease.map_err(of_runtime)?, &self.device, stream);
        held.is_findable();
        Ok(Lease { held })
    }
}

#[pymethods]
impl Lease {
    /// The parts as tensors of another library, each made by `importer` of a capsule. What DLPack has no common word for
    /// comes as bytes, in one dimension.
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        importer: &Bound<'py, PyAny>,
        metas: Vec<Meta>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.has(metas.len())?;
        let tensors = PyList::empty(py);
        for (leaf, (shape, dtype)) in metas.iter().enumerate() {
            let region = self.held.lease().leaf(leaf);
            let bytes = [region.size_bytes() as i64];
            let (dtype, shape) = match DataType::named(dtype) {
                Some(dtype) => (Some(dtype), &shape[..]),
                None => (DataType::named("uint8"), &bytes[..]),
            };
            let Some(dtype) = dtype else {
                continue;
            };
            let address = region.address();
            let capsule = dlpack::capsule(py, &self.held, address, dtype, shape, Form::Legacy)?;
            tensors.append(importer.call1((capsule,))?)?;
        }
        Ok(tensors)
    }

    /// The parts as arrays of our own.
    fn arrays(&self, metas: Vec<Meta>) -> PyResult<Vec<DeviceArray>> {
        self.has(metas.len())?;
        let each = metas.into_iter().enumerate();
        let array = |(leaf, (shape, dtype)): (usize, Meta)| {
            DeviceArray::new(&self.held, leaf, shape, dtype)
        };
        Ok(each.map(array).collect())
    }

    /// The same batch in memory of its own, copied on this stream.
    fn copied(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Lease> {
        let device = self.held.device();
        let stream = stream_of(device, stream)?;
        let lease = py.detach(|| self.held.lease().copied(&stream));
        let held = Held::new(lease.map_err(of_runtime)?, device, stream);
        held.is_findable();
        Ok(Lease { held })
    }
}

impl Lease {
    fn has(&self, wanted: usize) -> PyResult<()> {
        let leaves = self.held.lease().leaves();
        match leaves == wanted {
            true => Ok(()),
            false => Err(PyValueError::new_err(format!(
                "the batch has {leaves} parts, and {wanted} were described; describe each"
            ))),
        }
    }
}

/// How many references there are to an object of a list, that of the list included.
#[pyfunction]
pub fn references(list: &Bound<'_, PyList>, index: usize) -> PyResult<isize> {
    let item = list.get_item(index)?;
    // SAFETY: the object is there, and the interpreter is attached. One reference is our own.
    Ok(unsafe { ffi::Py_REFCNT(item.as_ptr()) } - 1)
}
