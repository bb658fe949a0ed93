//! Device arrays that were handed out, and the lookup of the batch that owns an address.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyTuple};
use sidestream::device::Device;
use sidestream::explicit::Stream;
use sidestream::prefetch::Lease;

use crate::devices;
use crate::dlpack::{self, CUDA, DataType, Form};
use crate::failure::of_runtime;
use crate::process::PerProcess;
use crate::stream::stream_of;

/// A batch that was handed out, shared by its arrays. It is dropped with the last of them.
pub struct Held {
    lease: Lease,
    device: Device,
    /// The stream that the batch was handed out on.
    stream: Stream,
}

/// Batches by first address, with their size in bytes. Ranges do not overlap. An entry whose batch is gone is noticed
/// when it is looked up.
static LIVE: PerProcess<BTreeMap<u64, (u64, Weak<Held>)>> = PerProcess::new();

impl Held {
    /// Registers a batch, so that [`note_stream`] finds it by an address inside it.
    pub fn new(lease: Lease, device: &Device, stream: Stream) -> Arc<Held> {
        let (start, bytes) = lease.address();
        let held = Arc::new(Held {
            lease,
            device: device.clone(),
            stream,
        });
        let mut live = LIVE.get().lock();
        // Memory that was returned to the driver leaves a stale entry. If the driver allocates it again as part of a
        // larger block, a lookup of an address in that block would find the stale entry first.
        let inside = live.range(start..start + bytes);
        let gone: Vec<u64> = inside.map(|(&first, _)| first).collect();
        for first in gone {
            live.remove(&first);
        }
        live.insert(start, (bytes, Arc::downgrade(&held)));
        held
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The CUDA ordinal of the device.
    pub fn ordinal(&self) -> Option<u32> {
        devices::ordinal(&self.device)
    }
}

/// Records that the stream uses the batch that contains this address: the memory of the batch is not reused until the
/// stream has completed all work that it got before the batch was released. Returns whether there is such a batch.
#[pyfunction]
pub fn note_stream(address: u64, stream: &Bound<'_, PyAny>) -> PyResult<bool> {
    let held = {
        let live = LIVE.get().lock();
        let below = live.range(..=address).next_back();
        below
            .filter(|(start, (bytes, _))| address - **start < *bytes)
            .and_then(|(_, (_, held))| held.upgrade())
    };
    let Some(held) = held else {
        return Ok(false);
    };
    held.lease.note(&stream_of(&held.device, stream)?);
    Ok(true)
}

/// An array on a GPU, real or simulated, without PyTorch: one part of a batch of ``sidestream.prefetch``.
///
/// The array is contiguous. It is valid for work on the stream that it was handed out on, which waits for the upload,
/// and on streams that were named with ``record_stream`` or by a library that imports it with ``from_dlpack``. The
/// memory of the batch is reused once all its arrays are gone and their uses on these streams are complete.
#[pyclass(module = "sidestream", frozen)]
pub struct DeviceArray {
    held: Arc<Held>,
    leaf: usize,
    shape: Vec<i64>,
    dtype: String,
}

#[pymethods]
impl DeviceArray {
    /// The size of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The element type, by numpy's name, such as ``float32``.
    #[getter]
    fn dtype(&self) -> &str {
        &self.dtype
    }

    /// The size of the array in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.held.lease.leaf(self.leaf).size_bytes()
    }

    /// The name of the device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.held.device)
    }

    /// Record that the array is used on this stream too. Make the stream wait for the one that the array was handed out
    /// on.
    ///
    /// The memory is not reused until the stream has completed all work that it got before the batch was released. This
    /// call waits for nothing.
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream_of(&self.held.device, stream)?;
        self.held.lease.note(&stream);
        Ok(())
    }

    /// Return a copy as a numpy array, ordered after the work enqueued so far in the streams that use the batch.
    ///
    /// The call blocks the host until the copy is complete.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let known = DataType::named(&self.dtype).filter(|dtype| dtype.letter().is_some());
        if known.is_none() {
            let remedy = match self.held.ordinal() {
                Some(_) => "take the array with torch.from_dlpack, or convert it in the loader",
                None => {
                    "and other libraries cannot reach a simulated device; convert it in the loader"
                }
            };
            return Err(PyTypeError::new_err(format!(
                "numpy has no type for {}: {remedy}",
                self.dtype
            )));
        }
        let numpy = py.import("numpy")?;
        let mut bytes = vec![0u8; self.nbytes() as usize];
        let read = py.detach(|| self.held.lease.read(self.leaf, &mut bytes));
        read.map_err(of_runtime)?;
        let flat = numpy.call_method1("frombuffer", (PyByteArray::new(py, &bytes), &self.dtype))?;
        flat.call_method1("reshape", (self.shape(py)?,))
    }

    /// Refuse the implicit conversion to a numpy array.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__(
        &self,
        dtype: Option<Bound<'_, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'_, PyAny>> {
        let _ = (dtype, copy);
        Err(PyTypeError::new_err(format!(
            "the array is on {}, and is not copied to the host unasked; call its .numpy(), which waits for the device",
            self.device()
        )))
    }

    /// Export the memory to another library, as ``torch.from_dlpack`` and others request it.
    ///
    /// The consumer's stream waits for the one that the array was handed out on, and is recorded as by
    /// ``record_stream``.
    ///
    /// Args:
    ///     stream: The consumer's stream: ``None`` or 1 for the legacy default stream, 2 for the per-thread one, a
    ///         handle, or -1: nothing waits and no stream is recorded. 0 is refused, because it is ambiguous.
    ///     max_version: The latest version of DLPack that the consumer understands.
    ///     dl_device: The device of the array; any other is refused.
    ///     copy: ``True`` is refused: the export never copies.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.__dlpack_device__()?;
        if dl_device.is_some_and(|wanted| wanted != here) || copy == Some(true) {
            return Err(PyBufferError::new_err(format!(
                "the array is exported without a copy, on {}; copy the result",
                self.device()
            )));
        }
        let dtype = DataType::named(&self.dtype).ok_or_else(|| {
            PyBufferError::new_err(format!("DLPack has no common type for {}", self.dtype))
        })?;
        self.wait_for_consumer(py, stream)?;
        let form = match max_version {
            Some((major, _)) if major >= 1 => Form::Versioned,
            _ => Form::Legacy,
        };
        let address = self.held.lease.leaf(self.leaf).address();
        dlpack::capsule(py, &self.held, address, dtype, &self.shape, form)
    }

    /// DLPack's device type, CUDA, and the device's ordinal.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        match self.held.ordinal() {
            Some(ordinal) => Ok((CUDA, ordinal as i32)),
            None => Err(PyBufferError::new_err(format!(
                "{} is simulated: other libraries cannot reach its memory; take the values with numpy()",
                self.device()
            ))),
        }
    }

    /// Version 3 of the interface. The consumer waits for ``stream``, on which the array was handed out, and records
    /// its own stream with ``record_stream``, because this interface has no way to do so.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dtype = DataType::named(&self.dtype);
        let letter = dtype.and_then(DataType::letter);
        let (Some(_), Some(dtype), Some(letter)) = (self.held.ordinal(), dtype, letter) else {
            return Err(PyAttributeError::new_err(format!(
                "an array of {} on {} has no __cuda_array_interface__",
                self.dtype,
                self.device()
            )));
        };
        let bytes = dtype.size_bytes();
        let order = if bytes == 1 { '|' } else { '<' };
        let leaf = self.held.lease.leaf(self.leaf);
        // An empty array has address 0.
        let address = if leaf.size_bytes() == 0 {
            0
        } else {
            leaf.address()
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", format!("{order}{letter}{bytes}"))?;
        interface.set_item("data", (address, false))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("stream", self.held.stream.as_raw())?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(i64::to_string).collect();
        format!(
            "<DeviceArray of {} [{}] on {}>",
            self.dtype,
            sizes.join(", "),
            self.device()
        )
    }
}

impl DeviceArray {
    pub fn new(held: &Arc<Held>, leaf: usize, shape: Vec<i64>, dtype: String) -> DeviceArray {
        DeviceArray {
            held: Arc::clone(held),
            leaf,
            shape,
            dtype,
        }
    }

    fn wait_for_consumer(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        let handle = match stream {
            Some(-1) => return Ok(()),
            Some(0) => {
                return Err(PyValueError::new_err(
                    "stream=0 could be either default stream; give 1 for the legacy one or 2 for the per-thread one",
                ));
            }
            None => 1,
            Some(handle) => handle,
        };
        let consumer = stream_of(&self.held.device, handle.into_pyobject(py)?.as_any())?;
        let waits = consumer.wait_stream(&self.held.stream);
        self.held.lease.note(&consumer);
        waits.map_err(of_runtime)
    }
}
