//! What the recorder asks PyTorch: the plans of its operators, its current stream and device, the names of threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};

use super::plan::{self, Plan};
use super::streams::RawStream;
use super::tensor::Asked;

/// Functions and classes of PyTorch and of the package, as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Functions {
    /// Makes the plan of an operator.
    planner: Py<PyAny>,
    /// Formats the text of a race that is raised.
    pub shown: Py<PyAny>,
    /// Returns the program's variable names of two streams.
    called: Py<PyAny>,
    /// Returns the handle of a device's current stream; absent if there is no GPU.
    current_stream: Option<Py<PyAny>>,
    current_device: Option<Py<PyAny>>,
    thread_name: Py<PyAny>,
    /// PyTorch's own tensor classes.
    plain: Vec<Py<PyAny>>,
    /// The `__torch_dispatch__` of classes that do not define one.
    no_dispatch: Py<PyAny>,
}

/// What the recorder asks, and remembers of the answers.
pub struct Torch {
    pub functions: Functions,
    pub asked: Asked,
    /// The plans, by the address of their operators.
    pub plans: Mutex<HashMap<usize, Arc<Plan>>>,
    /// The current stream if there is no GPU.
    pub pretended: AtomicU64,
    pub freed: Freed,
}

/// Freed memory that PyTorch's allocator cannot reuse yet.
#[derive(Default)]
pub struct Freed {
    /// Returns its addresses and sizes.
    pub pending: Mutex<Option<Py<PyAny>>>,
    /// Whether enough memory with recorded streams was freed to make that query worth its cost.
    pub is_much: AtomicBool,
}

impl Torch {
    pub fn new(functions: Functions, pretend: bool) -> Torch {
        Torch {
            functions,
            asked: Asked::new(pretend),
            plans: Mutex::default(),
            pretended: AtomicU64::new(0),
            freed: Freed::default(),
        }
    }

    /// The plan of an operator; `name` numbers its name.
    pub fn plan(
        &self,
        func: &Bound<'_, PyAny>,
        name: impl FnOnce(String) -> u32,
    ) -> PyResult<Arc<Plan>> {
        let key = func.as_ptr() as usize;
        if let Some(known) = self.plans.lock().get(&key) {
            return Ok(known.clone());
        }
        let given: plan::Given = self
            .functions
            .planner
            .bind(func.py())
            .call1((func,))?
            .extract()?;
        let plan = Arc::new(Plan::new(given, name)?);
        // The package keeps the operators alive, so that an address always means the same operator.
        self.plans.lock().insert(key, plan.clone());
        Ok(plan)
    }

    /// Whether a tensor's class defines its own dispatch.
    #[inline]
    pub fn is_foreign(&self, types: &Bound<'_, PyAny>) -> bool {
        let plain = |class: &Bound<'_, PyAny>| {
            self.functions.plain.iter().any(|known| class.is(known)) || {
                let dispatch = class.getattr(intern!(class.py(), "__torch_dispatch__"));
                dispatch.is_ok_and(|dispatch| dispatch.is(&self.functions.no_dispatch))
            }
        };
        let types = types.cast::<PyTuple>();
        types.is_ok_and(|types| !types.iter().all(|class| plain(&class)))
    }

    /// The current stream of a device.
    pub fn stream(&self, py: Python<'_>, device: u32) -> RawStream {
        let asked = self.functions.current_stream.as_ref();
        let raw = asked.and_then(|ask| {
            let number = device.into_pyobject(py).ok()?;
            // SAFETY: the callable and its argument are live, and the list ends with a null pointer. The result
            // is a new reference, or null with an error set, which is taken away.
            let got = unsafe {
                let null = std::ptr::null_mut::<ffi::PyObject>();
                let got = ffi::PyObject_CallFunctionObjArgs(ask.as_ptr(), number.as_ptr(), null);
                Bound::from_owned_ptr_or_err(py, got)
            };
            got.ok()?.extract().ok()
        });
        let raw = raw.unwrap_or_else(|| self.pretended.load(Ordering::Relaxed));
        RawStream::of(device, raw)
    }

    pub fn device(&self, py: Python<'_>) -> u32 {
        let asked = self.functions.current_device.as_ref();
        let device = asked.and_then(|ask| ask.bind(py).call0().ok()?.extract().ok());
        device.unwrap_or(0)
    }

    /// The name of the calling thread.
    pub fn thread_name(&self, py: Python<'_>) -> String {
        let name = self.functions.thread_name.bind(py).call0();
        name.and_then(|name| name.extract()).unwrap_or_default()
    }

    /// The program's variable names of two streams.
    pub fn called(&self, py: Python<'_>, streams: [Option<RawStream>; 2]) -> [Option<String>; 2] {
        let [first, second] = streams.map(|stream| stream.map(|at| (at.device, at.raw)));
        let names = self.functions.called.bind(py).call1((first, second));
        let names = names.and_then(|names| names.extract::<(_, _)>());
        names.map_or_else(|_| Default::default(), Into::into)
    }

    /// The memory that cannot be reused yet, if that can be told.
    pub fn pending(&self, py: Python<'_>) -> Option<Vec<(u64, u64)>> {
        let ask = (self.freed.pending.lock().as_ref()).map(|ask| ask.clone_ref(py));
        ask?.call0(py).ok()?.extract(py).ok()
    }
}

/// The handle of a PyTorch stream, whichever stream class the object has.
pub fn handle(stream: &Bound<'_, PyAny>) -> Option<RawStream> {
    let device = stream.getattr("device_index").ok()?.extract().ok()?;
    let raw = match stream.getattr("cuda_stream") {
        Ok(raw) => raw.extract().ok()?,
        Err(_) => {
            let torch = stream.py().import("torch").ok()?;
            let kwargs = PyDict::new(stream.py());
            for name in ["stream_id", "device_index", "device_type"] {
                kwargs.set_item(name, stream.getattr(name).ok()?).ok()?;
            }
            let class = torch.getattr("cuda").ok()?.getattr("Stream").ok()?;
            let whole = class.call((), Some(&kwargs)).ok()?;
            whole.getattr("cuda_stream").ok()?.extract().ok()?
        }
    };
    Some(RawStream { device, raw })
}
