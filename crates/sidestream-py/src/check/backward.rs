//! Backward passes: the threads of PyTorch's engine have no Python frames, and it passes gradients between streams
//! without an operator that shows it.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::Recorder;
use super::plan::Touched;
use super::spine::{Core, Site};
use super::stack;
use super::streams::RawStream;
use super::threads::Threads;
use super::touch::Touch;

/// The backward passes that run.
pub struct Backward {
    /// Absent if no backward pass can run.
    engine: Option<Engine>,
    /// The number of the stack that runs backward, plus one.
    above: AtomicU64,
    /// The number of backward calls that are running.
    running: AtomicU64,
}

/// Access to PyTorch's backward engine.
#[derive(FromPyObject)]
pub struct Engine {
    /// The code object of the Python function that calls the engine.
    #[pyo3(item)]
    code: Py<PyAny>,
    /// The function that returns the graph node that runs in the calling thread.
    #[pyo3(item)]
    node: Option<Py<PyAny>>,
}

impl Backward {
    pub fn new(engine: Option<Engine>) -> Backward {
        Backward {
            engine,
            above: AtomicU64::new(0),
            running: AtomicU64::new(0),
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// The number of the stack that runs backward.
    pub fn stack(&self) -> u32 {
        self.above.load(Ordering::Relaxed).saturating_sub(1) as u32
    }

    /// Whether an addition is the engine's own: it sums the gradients of two nodes for the same input of a third, on
    /// whose stream it runs. An addition that a node itself makes is counted as one, too.
    #[cold]
    pub fn is_accumulation(&self, py: Python<'_>) -> bool {
        let Some(engine) = &self.engine else {
            return false;
        };
        if !self.is_running() || !stack::is_in(py, &engine.code) {
            return false;
        }
        // A leaf adds to its existing gradient, which the engine did not pass.
        let node = engine.node.as_ref().and_then(|ask| ask.call0(py).ok());
        let name = node.and_then(|node| node.call_method0(py, "name").ok()?.extract(py).ok());
        name.is_none_or(|name: String| !name.ends_with("AccumulateGrad"))
    }
}

#[pymethods]
impl Recorder {
    /// Backward runs from here until `leave_backward`; its threads have no Python frames. Returns what to pass to
    /// `leave_backward`.
    fn enter_backward(&self, py: Python<'_>) -> u64 {
        self.backward.running.fetch_add(1, Ordering::Relaxed);
        let stack = self.in_stacks(|stacks| stacks.now(py));
        let above = stack
            .flatten()
            .map_or(0, |called| u64::from(called.stack) + 1);
        self.of_threads(py, Threads::enter_backward);
        self.backward.above.swap(above, Ordering::Relaxed)
    }

    fn leave_backward(&self, py: Python<'_>, before: u64) {
        self.of_threads(py, Threads::leave_backward);
        self.backward.running.fetch_sub(1, Ordering::Relaxed);
        self.backward.above.store(before, Ordering::Relaxed);
    }

    /// The engine passes these gradients to a node, before the node runs.
    fn gradients(&self, py: Python<'_>, given: &Bound<'_, PyAny>) {
        if self.is_on() {
            let stream = self.torch.stream(py, self.torch.device(py));
            self.passed(given, self.site(py, 0), stream);
        }
    }

    /// The engine returned these gradients to its caller. It is unknown on which streams it recorded them.
    fn gradients_of_edges(&self, py: Python<'_>, given: &Bound<'_, PyAny>) {
        if self.is_on() {
            let streams: Vec<RawStream> = {
                let core = self.core.lock();
                core.streams.all.iter().map(|stream| stream.raw).collect()
            };
            let site = self.site(py, 0);
            for stream in streams {
                self.passed(given, site, stream);
            }
        }
    }
}

impl Recorder {
    /// The engine passes gradients, a tuple or a single one, to work on this stream.
    fn passed(&self, given: &Bound<'_, PyAny>, site: Site, stream: RawStream) {
        let mut touched = Touched::default();
        let list = given.is_instance_of::<PyTuple>();
        touched.add(&self.torch.asked, given.clone(), false, list);
        self.leave_foreign(&mut touched);
        // The engine records no stream for gradients on other devices: their user waits itself.
        let device = stream.device as i32;
        touched.touches.retain(|touch| touch.device == device);
        let mut core = self.core.lock();
        core.passed_by_engine(site, stream, &touched.touches);
    }
}

impl Core {
    /// The engine passes gradients to work on this stream. For gradients of another stream it records this one,
    /// without an operator that would show it. It does so for nothing else that backward uses.
    pub fn passed_by_engine(&mut self, site: Site, stream: RawStream, touches: &[Touch]) {
        let id = self.stream(stream);
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            if self.space.is_away(touch.ptr, id) {
                self.note_stream(site, touch, stream);
            }
        }
    }
}
