//! The ring behind `sidestream.prefetch`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sidestream::device::Device;
use sidestream::prefetch::{self, Leaf, Spares, Statistics};

use crate::array::{DeviceArray, Held};
use crate::devices;
use crate::dlpack::{self, DataType, Form, OnHost};
use crate::failure::of_runtime;
use crate::process::PerProcess;
use crate::stream::stream_of;

/// What the prefetchers of each device have left for the next, by its name.
static SPARES: PerProcess<HashMap<String, Spares>> = PerProcess::new();

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
    metas: Arc<[Meta]>,
}

/// A batch on the device, for one who makes arrays of it.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Lease {
    held: Arc<Held>,
    metas: Arc<[Meta]>,
}

/// What a part is.
#[derive(Clone)]
struct Meta {
    shape: Vec<i64>,
    /// The name of its type.
    name: Cow<'static, str>,
}

/// A part that comes as bytes: its number, type and shape.
type Odd = (usize, String, Vec<i64>);

/// A page-locked tensor of at least so many bytes is copied from where it is. A smaller one is packed with the others,
/// since a copy of its own costs more than packing it.
pub const DIRECT_BYTES: u64 = 256 << 10;

/// What Python says of an array: what is to be kept alive in its place, the address, the bytes, whether it is copied from
/// where it is, shape and type.
type Described<'py> = (Bound<'py, PyAny>, u64, u64, bool, Vec<i64>, String);

#[pymethods]
impl Ring {
    #[new]
    #[pyo3(signature = (device, depth, max_pinned=None))]
    fn new(py: Python<'_>, device: &str, depth: usize, max_pinned: Option<u64>) -> PyResult<Ring> {
        // The arrays of a simulated GPU are no tensors, and no model takes them.
        let instead = "in a training loop give \"cpu\", where batches are read ahead and stay on the host, or leave the device out, which takes \
                       what there is";
        let device = devices::open_or(device, instead)?;
        let name = devices::name(&device).to_owned();
        let ring = py.detach(|| {
            let mut known = SPARES.get().lock();
            let spares = known.entry(name);
            let spares = spares.or_insert_with(|| Spares::new(&device)).clone();
            drop(known);
            spares.ring(depth)
        });
        let ring = ring.map_err(of_runtime)?;
        let ring = match max_pinned {
            None => ring,
            Some(most_bytes) => ring.limit_pinned(most_bytes),
        };
        Ok(Ring { ring, device })
    }

    /// The name of its device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.device)
    }

    /// Copies arrays of the host to a free slot. What is exactly of the type `kind` is exported by `export` as a capsule of
    /// DLPack. What that does not take, and what is large, `describe` is asked about, with its number and itself: it says what
    /// [`Described`] says, or nothing for what stays where it is. The caller keeps the list.
    fn put<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyList>,
        kind: &Bound<'py, PyAny>,
        export: &Bound<'py, PyAny>,
        describe: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Ticket>> {
        let (mut leaves, mut metas) = (Vec::new(), Vec::new());
        for at in 0..arrays.len() {
            let array = arrays.get_item(at)?;
            let small = match array.get_type().is(kind) {
                true => small_tensor(&array, export)?,
                false => None,
            };
            if let Some(small) = small {
                leaves.push(Leaf {
                    address: small.address,
                    bytes: small.bytes,
                    direct: false,
                });
                metas.push(Meta {
                    shape: small.shape,
                    name: small.name.into(),
                });
                continue;
            }
            let described: Option<Described<'py>> = describe.call1((at, &array))?.extract()?;
            let Some((kept, address, bytes, direct, shape, name)) = described else {
                continue;
            };
            if !kept.is(&array) {
                arrays.set_item(at, kept)?;
            }
            leaves.push(Leaf {
                address,
                bytes,
                direct,
            });
            let name = name.into();
            metas.push(Meta { shape, name });
        }
        // SAFETY: the list keeps the arrays behind these addresses, and the Python package keeps the list as long as this
        // function demands. That nobody writes them meanwhile is what its documentation asks of loaders, as PyTorch does.
        let ticket = py.detach(|| unsafe { self.ring.put(&leaves) });
        let ticket = ticket.map_err(of_runtime)?;
        Ok(ticket.map(|ticket| Ticket {
            ticket,
            device: self.device.clone(),
            metas: metas.into(),
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
            pinned_bytes,
            warnings,
        } = self.ring.statistics();
        let dict = PyDict::new(py);
        dict.set_item("batches", batches)?;
        dict.set_item("bytes", bytes)?;
        dict.set_item("direct_bytes", direct_bytes)?;
        dict.set_item("slots", slots)?;
        dict.set_item("grown", grown)?;
        dict.set_item("retired", retired)?;
        dict.set_item("pinned_bytes", pinned_bytes)?;
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
        held.enter();
        let metas = Arc::clone(&self.metas);
        Ok(Lease { held, metas })
    }
}

#[pymethods]
impl Lease {
    /// The parts as tensors of another library, each made by `importer` of a capsule. What DLPack has no common word for
    /// comes as bytes, in one dimension; the second list has the numbers of these, their types and their shapes.
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        importer: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, Vec<Odd>)> {
        let (tensors, mut odd) = (PyList::empty(py), Vec::new());
        for (leaf, meta) in self.metas.iter().enumerate() {
            let region = self.held.lease().leaf(leaf);
            let bytes = [region.size_bytes() as i64];
            let (dtype, shape) = match DataType::named(&meta.name) {
                Some(dtype) => (dtype, &meta.shape[..]),
                None => {
                    odd.push((leaf, meta.name.to_string(), meta.shape.clone()));
                    (DataType::BYTES, &bytes[..])
                }
            };
            let address = region.address();
            let capsule = dlpack::capsule(py, &self.held, address, dtype, shape, Form::Legacy)?;
            tensors.append(importer.call1((capsule,))?)?;
        }
        Ok((tensors, odd))
    }

    /// Where its memory lies; none of another one that is there has the same address.
    fn address(&self) -> u64 {
        self.held.lease().address().0
    }

    /// The parts as arrays of our own.
    fn arrays(&self) -> Vec<DeviceArray> {
        let each = self.metas.iter().cloned().enumerate();
        let array = |(leaf, meta): (usize, Meta)| {
            DeviceArray::new(&self.held, leaf, meta.shape, meta.name.into_owned())
        };
        each.map(array).collect()
    }

    /// The same batch in memory of its own, copied on this stream.
    fn copied(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Lease> {
        let device = self.held.device();
        let stream = stream_of(device, stream)?;
        let lease = py.detach(|| self.held.lease().copied(&stream));
        let held = Held::new(lease.map_err(of_runtime)?, device, stream);
        held.enter();
        let metas = Arc::clone(&self.metas);
        Ok(Lease { held, metas })
    }
}

/// A plain tensor of PyTorch that is to be packed; none if it takes a closer look.
fn small_tensor(tensor: &Bound<'_, PyAny>, export: &Bound<'_, PyAny>) -> PyResult<Option<OnHost>> {
    // What is no ordinary memory of the host is refused, and looked at by the other way.
    let Ok(capsule) = export.call1((tensor,)) else {
        return Ok(None);
    };
    let small = dlpack::on_host(&capsule).filter(|small| small.bytes < DIRECT_BYTES);
    // PyTorch keeps signs that are still to be changed beside the memory.
    let is_lazy = small
        .as_ref()
        .is_some_and(|small| small.name.starts_with("complex"))
        || tensor
            .call_method0(intern!(tensor.py(), "is_neg"))?
            .is_truthy()?;
    Ok(small.filter(|_| !is_lazy))
}

/// Gives back the memory that earlier prefetchers have left for the next, once its uses are complete.
#[pyfunction]
pub fn empty_cache(py: Python<'_>) {
    py.detach(|| {
        let known: Vec<Spares> = SPARES.get().lock().values().cloned().collect();
        known.iter().for_each(Spares::clear);
    });
}

/// How many bytes of device memory and of pinned memory are kept for the next prefetchers, on all devices.
#[pyfunction]
pub fn cached_bytes() -> (u64, u64) {
    let known = SPARES.get().lock();
    let each = known.values().map(Spares::bytes);
    each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
}

/// How many references there are to an object of a list, that of the list included.
#[pyfunction]
pub fn references(list: &Bound<'_, PyList>, index: usize) -> PyResult<isize> {
    let item = list.get_item(index)?;
    // SAFETY: the object is there, and the interpreter is attached. One reference is our own.
    Ok(unsafe { ffi::Py_REFCNT(item.as_ptr()) } - 1)
}
