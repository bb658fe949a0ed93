//! The ring of device buffers behind `sidestream.prefetch`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use sidestream::device::Device;
use sidestream::prefetch::{self, Leaf, Spares};

use crate::array::{DeviceArray, Held};
use crate::devices;
use crate::dlpack::{self, DataType, Form, OnHost};
use crate::failure::of_runtime;
use crate::process::PerProcess;
use crate::stream::stream_of;

/// Memory that earlier prefetchers left for the next one, by device name.
static SPARES: PerProcess<HashMap<String, Spares>> = PerProcess::new();

/// The slots of device memory that batches pass through.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Ring {
    ring: prefetch::Ring,
    device: Device,
}

/// A batch in flight to the device.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Ticket {
    ticket: prefetch::Ticket,
    device: Device,
    metas: Vec<Meta>,
}

/// The type and shape of one part.
#[derive(Clone)]
struct Meta {
    shape: Vec<i64>,
    /// The name of the part's type.
    name: Cow<'static, str>,
}

/// A part that is exported as bytes: its index, type and shape.
type Odd = (usize, String, Vec<i64>);

/// A page-locked tensor of at least this many bytes is copied directly. A smaller one is packed with the others,
/// since a separate copy costs more than packing.
pub const DIRECT_BYTES: u64 = 256 << 10;

/// Python's description of an array: the object to keep alive in its place, its address, its size in bytes, whether
/// it is copied directly, its shape and its type.
type Described<'py> = (Bound<'py, PyAny>, u64, u64, bool, Vec<i64>, String);

#[pymethods]
impl Ring {
    #[new]
    #[pyo3(signature = (device, depth, max_pinned=None))]
    fn new(py: Python<'_>, device: &str, depth: usize, max_pinned: Option<u64>) -> PyResult<Ring> {
        // Arrays of a simulated GPU are not tensors, and no model accepts them.
        let instead = "in a training loop give \"cpu\", where batches are read ahead and stay on the host, or omit the device, which takes \
                       the one that is available";
        let device = devices::open_or(device, instead)?;
        let name = devices::name(&device).to_owned();
        let ring = py.detach(|| {
            let mut known = SPARES.get().lock();
            let spares = known.entry(name).or_insert_with(|| Spares::new(&device));
            let spares = spares.clone();
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

    /// The name of the device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.device)
    }

    /// Copies host arrays to a free slot. Arrays whose type is exactly one of `exporters` are exported by its first
    /// function as DLPack capsules, unless its second, if there is one, says that the memory is not what they mean. For
    /// all other arrays, for those that are refused, and for large ones, `describe` is called with the index and the
    /// array: it returns [`Described`], or `None` for what stays on the host. The caller keeps the list alive.
    fn put<'py>(
        &self,
        py: Python<'py>,
        arrays: &Bound<'py, PyList>,
        exporters: &Bound<'py, PyDict>,
        describe: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Ticket>> {
        let (mut leaves, mut metas) = (Vec::new(), Vec::new());
        for at in 0..arrays.len() {
            let array = arrays.get_item(at)?;
            let known = exporters.get_item(array.get_type())?;
            let small = known.map(|known| small(&array, &known)).transpose()?;
            let (address, bytes, direct, shape, name) = if let Some(small) = small.flatten() {
                let name = Cow::from(small.name);
                (small.address, small.bytes, false, small.shape, name)
            } else {
                let described: Option<Described<'py>> = describe.call1((at, &array))?.extract()?;
                let Some((kept, address, bytes, direct, shape, name)) = described else {
                    continue;
                };
                if !kept.is(&array) {
                    arrays.set_item(at, kept)?;
                }
                (address, bytes, direct, shape, name.into())
            };
            leaves.push(Leaf {
                address,
                bytes,
                direct,
            });
            metas.push(Meta { shape, name });
        }
        // SAFETY: the list keeps the arrays at these addresses alive, and the Python package keeps the list as long as this
        // function demands. Its documentation asks loaders, as PyTorch does, not to write them meanwhile.
        let ticket = py.detach(|| unsafe { self.ring.put(&leaves) });
        let ticket = ticket.map_err(of_runtime)?;
        Ok(ticket.map(|ticket| Ticket {
            ticket,
            device: self.device.clone(),
            metas,
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

    /// The ring's part of `PrefetchStatistics`, by its names.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.ring.statistics();
        let counts = [
            ("bytes", found.bytes),
            ("bytes_from_pinned", found.direct_bytes),
            ("slots", found.slots as u64),
            ("grown", found.grown),
            ("retired", found.retired),
            ("pinned_bytes", found.pinned_bytes),
        ];
        let dict = counts.into_py_dict(py)?;
        dict.set_item("warnings", found.warnings)?;
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

    /// Makes the batch valid for work on this stream, which waits for the copy, and exports its parts as tensors of
    /// another library, each made by `importer` from a capsule. Parts whose type DLPack cannot express are exported as
    /// bytes, in one dimension; the second list has their indices, types and shapes. The last value is the address of
    /// the batch's memory; no other live batch has the same address.
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        stream: &Bound<'_, PyAny>,
        importer: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, Vec<Odd>, u64)> {
        let held = self.hand_over(py, stream, false)?;
        let (tensors, mut odd) = (PyList::empty(py), Vec::new());
        for (leaf, meta) in self.metas.iter().enumerate() {
            let region = held.lease().leaf(leaf);
            let bytes = [region.size_bytes() as i64];
            let (dtype, shape) = match DataType::named(&meta.name) {
                Some(dtype) => (dtype, &meta.shape[..]),
                None => {
                    odd.push((leaf, meta.name.to_string(), meta.shape.clone()));
                    (DataType::BYTES, &bytes[..])
                }
            };
            let address = region.address();
            let capsule = dlpack::capsule(py, &held, address, dtype, shape, Form::Legacy)?;
            tensors.append(importer.call1((capsule,))?)?;
        }
        Ok((tensors, odd, held.lease().address().0))
    }

    /// Makes the batch, or a copy of it in separate memory, valid for work on this stream, which waits for the copy, and
    /// returns its parts.
    fn arrays(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        copies: bool,
    ) -> PyResult<Vec<DeviceArray>> {
        let held = self.hand_over(py, stream, copies)?;
        let each = self.metas.iter().cloned().enumerate();
        let array = |(leaf, meta): (usize, Meta)| {
            DeviceArray::new(&held, leaf, meta.shape, meta.name.into_owned())
        };
        Ok(each.map(array).collect())
    }
}

impl Ticket {
    fn hand_over(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        copies: bool,
    ) -> PyResult<Arc<Held>> {
        let stream = stream_of(&self.device, stream)?;
        let lease = py.detach(|| {
            let lease = self.ticket.hand_over(&stream)?;
            if copies {
                lease.copied(&stream)
            } else {
                Ok(lease)
            }
        });
        Ok(Held::new(lease.map_err(of_runtime)?, &self.device, stream))
    }
}

/// The description of an array that is to be packed; `None` if the array needs the slow path.
fn small(array: &Bound<'_, PyAny>, known: &Bound<'_, PyAny>) -> PyResult<Option<OnHost>> {
    let (export, is_other): (Bound<'_, PyAny>, Option<Bound<'_, PyAny>>) = known.extract()?;
    // An array that is not in ordinary host memory is refused, and takes the slow path.
    let Ok(capsule) = export.call1((array,)) else {
        return Ok(None);
    };
    let small = dlpack::on_host(&capsule).filter(|small| small.bytes < DIRECT_BYTES);
    // PyTorch stores a pending conjugation or negation as a flag, not in memory.
    let is_lazy = small
        .as_ref()
        .is_some_and(|small| small.name.starts_with("complex"))
        || is_other.map_or(Ok(false), |ask| ask.call1((array,))?.is_truthy())?;
    Ok(small.filter(|_| !is_lazy))
}

/// Frees the memory that earlier prefetchers have left for the next, once its uses are complete.
#[pyfunction]
pub fn empty_cache(py: Python<'_>) {
    py.detach(|| {
        let known: Vec<Spares> = SPARES.get().lock().values().cloned().collect();
        known.iter().for_each(Spares::clear);
    });
}

/// The bytes of device memory and of pinned memory that are kept for later prefetchers, over all devices.
#[pyfunction]
pub fn cached_bytes() -> (u64, u64) {
    let known = SPARES.get().lock();
    let each = known.values().map(Spares::bytes);
    each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
}
