//! The small results of `sidestream.fetch`: a kernel on the caller's stream writes them to page-locked memory.
//!
//! A loop reads its loss in each step, so what counts is the number of driver calls: a launch and a record here,
//! against five calls and two allocations for a copy on the device and a download on another stream. The stream waits
//! for no copy engine, which may be busy with large downloads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use pyo3::prelude::*;
use sidestream::device::Device;
use sidestream::error::Result;
use sidestream::explicit::{Arg, DeviceMemory, Event, HostMemory, Stream};
use sidestream::kernel::library::{self, CopyPiece};
use sidestream::kernel::{Grid, Kernel};

use crate::devices;
use crate::failure::of_runtime;
use crate::stream::{PER_THREAD, stream_of};

const THREADS: u32 = 256;

/// Posts the small results of a device to the host.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Outbox {
    device: Device,
    copy: Kernel<CopyPiece>,
    /// Streams by handle. PyTorch's streams are never destroyed, and of other libraries' streams only the handle is
    /// kept here.
    streams: Mutex<HashMap<u64, Stream>>,
    used: Arc<Mutex<Used>>,
}

/// A result in flight to the host.
#[pyclass(module = "sidestream._sidestream", frozen)]
pub struct Posted {
    /// Taken only on drop.
    sent: Option<Sent>,
    is_over: AtomicBool,
    used: Arc<Mutex<Used>>,
}

/// An event that is recorded after the kernel, and the owner of the memory that the kernel writes.
struct Sent {
    event: Event,
    home: Py<PyAny>,
}

#[derive(Default)]
struct Used {
    spare: Vec<Event>,
    /// Results that were dropped while a kernel may still write to their memory.
    dropped: VecDeque<Sent>,
}

#[pymethods]
impl Outbox {
    #[new]
    fn new(device: &str) -> PyResult<Outbox> {
        Ok(Outbox {
            device: devices::open(device)?,
            // SAFETY: each launch passes the length of its memory.
            copy: unsafe { library::copy_piece() },
            streams: Mutex::default(),
            used: Arc::default(),
        })
    }

    /// Copies `size` bytes from the device to page-locked memory that `home` owns, ordered after the work enqueued so
    /// far in this stream.
    ///
    /// The caller guarantees that the bytes are valid for work on this stream, as PyTorch's allocator does.
    fn post(
        &self,
        py: Python<'_>,
        source: u64,
        target: u64,
        size: u64,
        stream: u64,
        home: Py<PyAny>,
    ) -> PyResult<Posted> {
        let stream = self.stream(py, stream)?;
        let posted = py.detach(|| {
            let over = self.dropped_and_over()?;
            Ok((self.copied(source, target, size, &stream)?, over))
        });
        let (event, _over) = posted.map_err(of_runtime)?;
        Ok(Posted {
            sent: Some(Sent { event, home }),
            is_over: AtomicBool::new(false),
            used: Arc::clone(&self.used),
        })
    }
}

impl Outbox {
    fn stream(&self, py: Python<'_>, handle: u64) -> PyResult<Stream> {
        if let Some(known) = self.streams.lock().get(&handle) {
            return Ok(known.clone());
        }
        let number = handle.into_pyobject(py)?.into_any();
        let stream = stream_of(&self.device, &number)?;
        // This handle means a different stream on every thread.
        if handle != PER_THREAD {
            self.streams.lock().insert(handle, stream.clone());
        }
        Ok(stream)
    }

    /// The owners of memory that no kernel writes to any more. They are dropped by the caller, which has the GIL.
    fn dropped_and_over(&self) -> Result<Vec<Py<PyAny>>> {
        let mut over = Vec::new();
        loop {
            // The lock is released while the driver is asked.
            let Some(sent) = self.used.lock().dropped.pop_front() else {
                return Ok(over);
            };
            let is_over = sent.event.query();
            let mut used = self.used.lock();
            if matches!(is_over, Ok(true)) {
                used.spare.push(sent.event);
                over.push(sent.home);
            } else {
                used.dropped.push_front(sent);
                return is_over.map(|_| over);
            }
        }
    }

    fn copied(&self, from: u64, to: u64, bytes: u64, stream: &Stream) -> Result<Event> {
        let spare = self.used.lock().spare.pop();
        let event = match spare {
            Some(event) => event,
            None => Event::new(&self.device)?,
        };
        // SAFETY: both are valid: the source for work on this stream, as the caller guarantees, and the target until
        // the event is complete, since `Posted` keeps its owner until then. Before that, no code reads the target and
        // no other code writes it.
        unsafe {
            let source = DeviceMemory::from_raw(&self.device, from, bytes);
            let target = HostMemory::from_raw(&self.device, to, bytes);
            let args = [
                Arg::Reads(source.all()),
                Arg::Writes(target.all()),
                Arg::value(bytes),
            ];
            stream.launch(&self.copy, Grid::new(1, THREADS), &args)?;
        }
        stream.record(&event)?;
        Ok(event)
    }
}

#[pymethods]
impl Posted {
    /// Whether the result has arrived. Never blocks.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let is_over = self.is_over.load(Relaxed)
            || match &self.sent {
                Some(sent) => py.detach(|| sent.event.query()).map_err(of_runtime)?,
                None => true,
            };
        self.is_over.store(is_over, Relaxed);
        Ok(is_over)
    }

    /// Blocks until the result has arrived.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(sent) = &self.sent {
            py.detach(|| sent.event.synchronize()).map_err(of_runtime)?;
        }
        self.is_over.store(true, Relaxed);
        Ok(())
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(sent) = self.sent.take() {
            let mut used = self.used.lock();
            match *self.is_over.get_mut() {
                true => used.spare.push(sent.event),
                false => used.dropped.push_back(sent),
            }
        }
    }
}
