//! Streams: our own, and those of PyTorch and other libraries.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyInt;
use sidestream::device::Device;
use sidestream::explicit;
use sidestream::op::StreamKind;

use crate::devices;
use crate::failure::of_runtime;
use crate::process::PerProcess;

/// CUDA's names for the default streams. 0 also means the legacy stream, and is never returned: elsewhere it can mean
/// "no stream".
const LEGACY: u64 = 1;
pub const PER_THREAD: u64 = 2;

/// A stream of a device, for Python.
#[pyclass(module = "sidestream._sidestream", subclass, frozen)]
pub struct Stream {
    stream: explicit::Stream,
    device: Device,
    /// The stream's name, for display.
    #[pyo3(get)]
    name: String,
    /// The stream's priority. Lower is more urgent.
    #[pyo3(get)]
    priority: i32,
    identity: Identity,
    /// Whether the handle is known elsewhere: others may then use the stream after this object is gone.
    is_known: AtomicBool,
    /// The object from which `of` made this one; that object must stay alive as long as this one.
    #[pyo3(get)]
    adopted: Option<Py<PyAny>>,
    /// The process that made the stream: a forked child of it cannot reuse the stream.
    process: u32,
}

/// What identifies a stream, so that two objects compare equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Identity {
    Handle(u64),
    /// A simulated stream has no handle.
    Number(u64),
}

/// Streams whose handles are known elsewhere and that have no Python object any more, by device, name and priority.
///
/// They are never destroyed. PyTorch's allocator keeps memory by the handle of its stream, and records events in that
/// stream long after its last Python object is gone. The next stream of this kind reuses one of these.
static IDLE: PerProcess<HashMap<Kind, Vec<explicit::Stream>>> = PerProcess::new();

type Kind = (String, String, i32);

/// Streams of other libraries, by device and handle, so that each is one stream of the runtime.
static ADOPTED: PerProcess<HashMap<(String, u64), explicit::Stream>> = PerProcess::new();

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (device, priority, name, of))]
    fn new(
        py: Python<'_>,
        device: Option<&str>,
        priority: i32,
        name: Option<String>,
        of: Option<(Bound<'_, PyAny>,)>,
    ) -> PyResult<Stream> {
        match of {
            Some((other,)) => Stream::adopting(device, &other, name),
            None => {
                let device = devices::open(device.unwrap_or("cuda"))?;
                Stream::create(py, device, priority, name)
            }
        }
    }

    /// The name of the stream's device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.device)
    }

    /// CUDA's handle of the stream.
    #[getter]
    fn cuda_stream(&self) -> PyResult<u64> {
        self.handle()
    }

    fn wait_stream(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = stream_of(&self.device, other)?;
        py.detach(|| self.stream.wait_stream(&other))
            .map_err(of_runtime)
    }

    /// Return whether all work that was submitted to the stream so far is complete. Never blocks.
    ///
    /// Raises:
    ///     DeviceError: Work failed on the device.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.stream.query()).map_err(of_runtime)
    }

    /// Block until all work that was submitted to the stream so far is complete. Other Python threads run
    /// meanwhile.
    ///
    /// Raises:
    ///     DeviceError: Work failed on the device.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stream.synchronize()).map_err(of_runtime)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<Stream>() else {
            return Ok(py.NotImplemented());
        };
        let is_same = self.key() == other.get().key();
        Ok(is_same.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.key().hash(&mut hasher);
        hasher.finish()
    }
}

impl Stream {
    /// The stream of the runtime.
    pub fn stream(&self) -> &explicit::Stream {
        &self.stream
    }

    /// The handle. From here on, the stream counts as known elsewhere.
    pub fn handle(&self) -> PyResult<u64> {
        match self.identity {
            Identity::Handle(handle) => {
                self.is_known.store(true, Relaxed);
                Ok(handle)
            }
            Identity::Number(_) => Err(PyValueError::new_err(format!(
                "a stream of {} has no handle: the device is simulated, and no other library can use it; \
                 open the stream on \"cuda\"",
                self.device()
            ))),
        }
    }

    fn key(&self) -> (&str, Identity) {
        (self.device(), self.identity)
    }

    fn create(
        py: Python<'_>,
        device: Device,
        priority: i32,
        name: Option<String>,
    ) -> PyResult<Stream> {
        let name = name.unwrap_or_else(|| "side".to_owned());
        let kind = (devices::name(&device).to_owned(), name.clone(), priority);
        let idle = IDLE.get().lock().get_mut(&kind).and_then(Vec::pop);
        let is_known = idle.is_some();
        let stream = match idle {
            Some(stream) => stream,
            None => py
                .detach(|| explicit::Stream::non_blocking(&device, &name, priority))
                .map_err(of_runtime)?,
        };
        Ok(Stream {
            identity: identity(&stream),
            stream,
            device,
            name,
            priority,
            is_known: AtomicBool::new(is_known),
            adopted: None,
            process: std::process::id(),
        })
    }

    /// Wraps the stream of another library, or makes another object for one of ours.
    fn adopting(
        device: Option<&str>,
        other: &Bound<'_, PyAny>,
        name: Option<String>,
    ) -> PyResult<Stream> {
        let ours = of_ours(other);
        let device = match (device, &ours) {
            (Some(device), _) => devices::open(device)?,
            (None, Some(ours)) => ours.get().device.clone(),
            (None, None) => match ordinal_of(other)? {
                Some(ordinal) => devices::open(&format!("cuda:{ordinal}"))?,
                None => devices::open("cuda")?,
            },
        };
        // The object of the current stream, which keeps that stream alive.
        let current = if other.is_none() {
            Some(current_of_torch(other.py(), devices::ordinal(&device))?)
        } else {
            None
        };
        let other = current.as_ref().unwrap_or(other);
        let stream = stream_of(&device, other)?;
        let (known, priority) = match &ours {
            Some(ours) => {
                let ours = ours.get();
                // The handle may be read through this object, so the stream must outlive it.
                ours.is_known.store(true, Relaxed);
                (ours.name.clone(), ours.priority)
            }
            None => ("adopted".to_owned(), priority_of(other)?),
        };
        Ok(Stream {
            // A second object of a simulated stream compares equal to the first.
            identity: match &ours {
                Some(ours) => ours.get().identity,
                None => identity(&stream),
            },
            stream,
            device,
            name: name.unwrap_or(known),
            priority,
            is_known: AtomicBool::new(false),
            adopted: Some(other.clone().unbind()),
            process: std::process::id(),
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let is_child = self.process != std::process::id();
        if is_child || self.adopted.is_some() || !*self.is_known.get_mut() {
            return;
        }
        let kind = (self.device().to_owned(), self.name.clone(), self.priority);
        let mut idle = IDLE.get().lock();
        idle.entry(kind).or_default().push(self.stream.clone());
    }
}

fn identity(stream: &explicit::Stream) -> Identity {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match stream.as_raw() {
        Some(handle) => Identity::Handle(handle),
        None => Identity::Number(NEXT.fetch_add(1, Relaxed)),
    }
}

// ------------------------------------------------------------------ what is accepted as a stream

/// The stream of the runtime on `device` for a Python object: one of ours, a `torch.cuda.Stream` or another object
/// with `__cuda_stream__`, a handle as a number, or `None` for PyTorch's current stream.
///
/// The result must not outlive the Python object, unless that is one of PyTorch's own streams, which are never
/// destroyed.
pub fn stream_of(device: &Device, stream: &Bound<'_, PyAny>) -> PyResult<explicit::Stream> {
    if let Some(ours) = of_ours(stream) {
        let ours = ours.get();
        same_device(device, ours.device())?;
        return Ok(ours.stream.clone());
    }
    let Some(ordinal) = devices::ordinal(device) else {
        return Err(PyTypeError::new_err(format!(
            "{} accepts only a sidestream.Stream, because it is simulated; this is {}",
            devices::name(device),
            stream.repr()?
        )));
    };
    // A prefetcher passes the handle of the current stream for each batch. 0 is another name of the legacy stream.
    let number = stream.cast_exact::<PyInt>().ok();
    let handle = match number.and_then(|number| number.extract::<u64>().ok()) {
        Some(handle) => handle.max(LEGACY),
        None => {
            if let Some(other) = ordinal_of(stream)? {
                same_device(device, &format!("cuda:{other}"))?;
            }
            raw_on(ordinal, stream)?
        }
    };
    match handle {
        LEGACY => explicit::Stream::legacy(device).map_err(of_runtime),
        PER_THREAD => explicit::Stream::per_thread(device).map_err(of_runtime),
        handle => adopted(device, handle),
    }
}

/// The handle. Never 0: that is the legacy stream, whose other name is 1.
fn raw_on(ordinal: u32, stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if stream.is_none() {
        return raw_on(ordinal, &current_of_torch(stream.py(), Some(ordinal))?);
    }
    let given: i128 = if stream.hasattr("__cuda_stream__")? {
        let (version, handle): (i64, i128) = stream
            .call_method0("__cuda_stream__")?
            .extract()
            .map_err(|error| {
                PyTypeError::new_err(format!(
                    "__cuda_stream__() of {stream} does not return a pair of a version and a handle: {error}"
                ))
            })?;
        if version != 0 {
            return Err(PyTypeError::new_err(format!(
                "__cuda_stream__() of {stream} uses version {version} of the protocol, and only version 0 is supported; \
                 give the handle as a number"
            )));
        }
        handle
    } else if stream.hasattr("cuda_stream")? {
        stream.getattr("cuda_stream")?.extract()?
    } else {
        stream.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "{} is not a stream; give a sidestream.Stream, a torch.cuda.Stream, an object with __cuda_stream__, or \
                 a handle as a number",
                stream
                    .repr()
                    .map_or_else(|_| "this".to_owned(), |text| text.to_string())
            ))
        })?
    };
    match u64::try_from(given) {
        Ok(0) => Ok(LEGACY),
        Ok(handle) => Ok(handle),
        Err(_) => Err(PyValueError::new_err(format!(
            "{given} is not the handle of a stream; a handle is a number from 0 to 2^64 - 1"
        ))),
    }
}

fn current_of_torch(py: Python<'_>, ordinal: Option<u32>) -> PyResult<Bound<'_, PyAny>> {
    let torch = devices::torch(py)?;
    let cuda = torch.map(|torch| torch.getattr("cuda")).transpose()?;
    if let Some(cuda) = cuda
        && cuda.call_method0("is_available")?.is_truthy()?
    {
        return cuda.call_method1("current_stream", (ordinal,));
    }
    Err(PyValueError::new_err(
        "no stream was given, and there is no current stream, because PyTorch is not imported or has no CUDA; give a \
         sidestream.Stream",
    ))
}

fn of_ours<'a, 'py>(stream: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, Stream>> {
    stream.cast::<Stream>().ok()
}

/// The device of another library's stream, as its object states it.
fn ordinal_of(stream: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    let index = stream
        .getattr_opt("device")?
        .map(|device| device.getattr_opt("index"));
    let index = index.transpose()?.flatten();
    Ok(index.and_then(|index| index.extract().ok()))
}

fn priority_of(stream: &Bound<'_, PyAny>) -> PyResult<i32> {
    let priority = stream.getattr_opt("priority")?;
    Ok(priority
        .and_then(|priority| priority.extract().ok())
        .unwrap_or(0))
}

fn same_device(device: &Device, other: &str) -> PyResult<()> {
    let mine = devices::name(device);
    if mine == other {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the stream belongs to {other} and not to {mine}; give a stream of {mine}"
    )))
}

fn adopted(device: &Device, handle: u64) -> PyResult<explicit::Stream> {
    let key = (devices::name(device).to_owned(), handle);
    let mut known = ADOPTED.get().lock();
    if let Some(stream) = known.get(&key) {
        return Ok(stream.clone());
    }
    // SAFETY: the caller, who passes a handle, guarantees that it is a stream of this device, which is open in the
    // primary context like PyTorch's streams; `stream_of` documents how long the handle may be used. PyTorch creates
    // non-blocking streams. For other libraries this is unknown, and non-blocking promises the least.
    let stream =
        unsafe { explicit::Stream::from_raw(device, handle, StreamKind::NonBlocking, "adopted") };
    let stream = stream.map_err(of_runtime)?;
    known.insert(key, stream.clone());
    Ok(stream)
}
