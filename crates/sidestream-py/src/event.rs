//! Events: points in streams.

use pyo3::prelude::*;
use sidestream::device::Device;
use sidestream::explicit;

use crate::devices;
use crate::failure::of_runtime;
use crate::stream::stream_of;

/// A CUDA event of a device, for Python.
#[pyclass(module = "sidestream._sidestream", subclass, frozen)]
pub struct Event {
    event: explicit::Event,
    device: Device,
    /// Whether the event records the device's time.
    #[pyo3(get)]
    timing: bool,
    /// Whether a thread that is blocked on the event sleeps.
    #[pyo3(get)]
    blocking: bool,
}

#[pymethods]
impl Event {
    #[new]
    #[pyo3(signature = (timing, blocking, interprocess, handle, device))]
    fn new(
        py: Python<'_>,
        timing: bool,
        blocking: bool,
        interprocess: bool,
        handle: Option<[u8; 64]>,
        device: &str,
    ) -> PyResult<Event> {
        let device = devices::open(device)?;
        let made = py.detach(|| match (timing, blocking, handle) {
            (_, _, Some(handle)) => explicit::Event::from_ipc_handle(&device, handle),
            _ if interprocess => explicit::Event::interprocess(&device),
            (_, true, _) => explicit::Event::blocking(&device),
            (true, false, _) => explicit::Event::timed(&device),
            (false, false, _) => explicit::Event::new(&device),
        });
        Ok(Event {
            event: made.map_err(of_runtime)?,
            device,
            timing,
            blocking,
        })
    }

    /// The name of the event's device.
    #[getter]
    fn device(&self) -> &str {
        devices::name(&self.device)
    }

    /// The handle with which another process opens the event.
    fn ipc_handle(&self) -> PyResult<[u8; 64]> {
        self.event.ipc_handle().map_err(of_runtime)
    }

    fn record(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream_of(&self.device, stream)?;
        py.detach(|| stream.record(&self.event)).map_err(of_runtime)
    }

    fn wait(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream_of(&self.device, stream)?;
        py.detach(|| stream.wait(&self.event)).map_err(of_runtime)
    }

    /// Return whether the last record is complete. Never blocks.
    ///
    /// Raises:
    ///     DeviceError: Work failed on the device.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.event.query()).map_err(of_runtime)
    }

    /// Block until the last record is complete. Other Python threads run meanwhile.
    ///
    /// Raises:
    ///     DeviceError: Work failed on the device.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.event.synchronize()).map_err(of_runtime)
    }

    /// Nanoseconds on the device from this event to `end`.
    fn elapsed_ns(&self, py: Python<'_>, end: &Event) -> PyResult<f64> {
        py.detach(|| end.event.elapsed_ns_since(&self.event))
            .map_err(of_runtime)
    }
}
