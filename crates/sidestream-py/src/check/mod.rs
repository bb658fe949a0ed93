//! `sidestream.check`: a dispatch mode observes what PyTorch does, and passes it to the checker.
//!
//! [`Recorder`] is the mode. PyTorch calls it for every operator, and its callbacks for streams, events and memory
//! call it as well. This file reads their arguments; `spine` translates them.
//!
//! No lock is taken while Python code runs: Python may free a tensor at any time, and PyTorch then calls back here.

mod copies;
#[cfg(feature = "drive")]
mod drive;
mod events;
mod graphs;
mod hooks;
mod host;
mod idle;
mod launches;
mod memory;
mod plan;
mod reduce;
mod remarks;
mod report;
mod spine;
mod stack;
mod stores;
mod tensor;
mod threads;
mod touch;
mod ttir;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use idle::How;
use memory::Whose;
use plan::{Class, Plan, Touched};
use report::Details;
use spine::{Core, RawStream, Site};
use stack::Stacks;
use tensor::Asked;
use touch::Touch;

use crate::failure::RaceError;

/// Records what PyTorch does while it is checked.
#[pyclass(subclass, frozen, module = "sidestream._sidestream")]
pub struct Recorder {
    id: u64,
    on: AtomicBool,
    /// Whether the check has ended. A thread may keep the recorder in its stack of modes for longer.
    over: AtomicBool,
    raises: bool,
    core: Mutex<Core>,
    plans: Mutex<HashMap<usize, Arc<Plan>>>,
    stacks: Mutex<Option<Stacks>>,
    names: Mutex<Names>,
    details: Mutex<Details>,
    asked: Asked,
    /// Makes the plan of an operator.
    planner: Py<PyAny>,
    /// Formats the text of a race that is raised.
    shown: Py<PyAny>,
    /// Returns the program's variable names of two streams.
    called: Py<PyAny>,
    /// Returns the handle of a device's current stream; absent if there is no GPU.
    current_stream: Option<Py<PyAny>>,
    current_device: Option<Py<PyAny>>,
    thread_name: Py<PyAny>,
    /// Absent if no backward pass can run.
    engine: Option<Engine>,
    /// PyTorch's own tensor classes.
    plain: Vec<Py<PyAny>>,
    /// The `__torch_dispatch__` of classes that do not define one.
    no_dispatch: Py<PyAny>,
    device_numbers: Vec<Py<PyAny>>,
    words: Words,
    /// The number of the stack that runs backward, plus one.
    backward: AtomicU64,
    /// The number of backward calls that are running.
    backwards: AtomicU64,
    /// The current stream if there is no GPU.
    pretended: AtomicU64,
    /// The number of host accesses that the guard had recorded at the last report to the checker.
    fetched: AtomicU64,
    /// Registers a callback for the end of a storage's life.
    keep: Mutex<Option<Py<PyAny>>>,
    /// Returns the freed memory that cannot be reused yet: addresses and sizes.
    pending: Mutex<Option<Py<PyAny>>>,
    /// Whether enough memory with recorded streams was freed to make that query worth its cost.
    is_much_freed: AtomicBool,
    /// A race that was found where no exception can be raised.
    raised_late: Mutex<Option<PyErr>>,
    /// The log of the run, if one is kept.
    kept: Mutex<Option<reduce::Kept>>,
}

/// Access to PyTorch's backward engine.
#[derive(FromPyObject)]
struct Engine {
    /// The code object of the Python function that calls the engine.
    #[pyo3(item)]
    code: Py<PyAny>,
    /// The function that returns the graph node that runs in the calling thread.
    #[pyo3(item)]
    node: Option<Py<PyAny>>,
}

/// Interned names of arguments and attributes.
struct Words {
    non_blocking: Py<PyString>,
    src: Py<PyString>,
    stream: Py<PyString>,
    untyped_storage: Py<PyString>,
    torch_dispatch: Py<PyString>,
}

/// Names of operators and threads, by index.
#[derive(Default)]
struct Names {
    operators: Vec<String>,
    known: HashMap<String, u32>,
    threads: Vec<String>,
    /// The last thread with each system thread ID.
    natives: HashMap<i32, u32>,
}

impl Names {
    /// Registers the calling thread, and returns its number.
    fn thread(&mut self, name: String) -> u32 {
        let number = self.threads.len() as u32;
        self.threads.push(name);
        self.natives.insert(host_guard::hits::this_thread(), number);
        number
    }

    fn operator(&mut self, name: String) -> u32 {
        if let Some(&known) = self.known.get(&name) {
            return known;
        }
        let id = self.operators.len() as u32;
        self.operators.push(name.clone());
        self.known.insert(name, id);
        id
    }
}

static RECORDERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's number, in the recorder that asked last.
    static THREAD: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

#[pymethods]
impl Recorder {
    #[new]
    #[pyo3(signature = (planner, shown, called, thread_name, engine, plain, no_dispatch, memory, raises, hidden, current_stream, current_device, pretend))]
    #[expect(clippy::too_many_arguments, reason = "only the package calls it")]
    fn new(
        py: Python<'_>,
        planner: Py<PyAny>,
        shown: Py<PyAny>,
        called: Py<PyAny>,
        thread_name: Py<PyAny>,
        engine: Option<Engine>,
        plain: Vec<Py<PyAny>>,
        no_dispatch: Py<PyAny>,
        memory: u64,
        raises: bool,
        hidden: Option<(Vec<String>, Vec<String>)>,
        current_stream: Option<Py<PyAny>>,
        current_device: Option<Py<PyAny>>,
        pretend: bool,
    ) -> PyResult<Recorder> {
        let word = |text| PyString::intern(py, text).unbind();
        let mut names = Names::default();
        names.operator(String::new());
        let number = |n: i32| Ok(n.into_pyobject(py)?.into_any().unbind());
        Ok(Recorder {
            id: RECORDERS.fetch_add(1, Ordering::Relaxed),
            on: AtomicBool::new(true),
            over: AtomicBool::new(false),
            raises,
            core: Mutex::new(Core::new(memory)),
            plans: Mutex::default(),
            stacks: Mutex::new(hidden.map(|hidden| Stacks::new(py, hidden))),
            names: Mutex::new(names),
            details: Mutex::default(),
            asked: Asked::new(py, pretend),
            planner,
            shown,
            called,
            current_stream,
            current_device,
            thread_name,
            engine,
            plain,
            no_dispatch,
            device_numbers: (0..64).map(number).collect::<PyResult<_>>()?,
            words: Words {
                non_blocking: word("non_blocking"),
                src: word("src"),
                stream: word("s"),
                untyped_storage: word("untyped_storage"),
                torch_dispatch: word("__torch_dispatch__"),
            },
            backward: AtomicU64::new(0),
            backwards: AtomicU64::new(0),
            pretended: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            keep: Mutex::default(),
            pending: Mutex::default(),
            is_much_freed: AtomicBool::new(false),
            raised_late: Mutex::default(),
            kept: Mutex::default(),
        })
    }

    /// PyTorch calls this method for every operator.
    #[pyo3(signature = (func, types, args, kwargs=None))]
    fn __torch_dispatch__<'py>(
        &self,
        py: Python<'py>,
        func: &Bound<'py, PyAny>,
        types: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.over.load(Ordering::Relaxed) {
            // The recorder's plans may call a simulated GPU that no longer exists.
            return func.call(args, kwargs);
        }
        let plan = self.plan(func)?;
        if !self.on.load(Ordering::Relaxed) || launches::is_muted() {
            return called(&plan, args, kwargs);
        }
        // A tensor subclass is dispatched first; the operators that it calls come here.
        if self.is_foreign(types) {
            return Ok(py.NotImplemented().into_bound(py));
        }
        if self.raises
            && let Some(race) = self.raised_late.lock().take()
        {
            return Err(race);
        }
        // Host accesses before this operator are reported before the operator.
        if self.has_heard() {
            self.tell_heard(py, &[])?;
        }
        if self.is_much_freed.load(Ordering::Relaxed) {
            self.look_at_freed(py);
        }
        idle::inside(true);
        let result = called(&plan, args, kwargs);
        idle::inside(false);
        let result = match result {
            Ok(result) => result,
            Err(error) => return Err(self.failed_in(py, plan.name, error)),
        };
        // The operator's own accesses are reported below, by kind.
        if self.has_heard() {
            self.tell_heard_in(&plan, args, kwargs, &result)?;
        }
        match plan.class {
            Class::Silent => {}
            Class::Kernel | Class::Product | Class::Waits | Class::Indexed => {
                self.kernel(&plan, args, kwargs, &result)?
            }
            Class::Copy => {
                let target = args.get_item(0)?;
                let source = plan.argument(1, &self.words.src, args, kwargs);
                let free = self.non_blocking(&plan, 2, args, kwargs);
                if let Some(source) = source {
                    self.copy(&plan, &target, &source, free)?;
                }
            }
            Class::ToCopy => {
                let source = args.get_item(0)?;
                let free = self.non_blocking(&plan, usize::MAX, args, kwargs);
                self.copy(&plan, &result, &source, free)?;
            }
            Class::Copies => {
                let source = plan.argument(1, &self.words.src, args, kwargs);
                let free = self.non_blocking(&plan, 2, args, kwargs);
                if let Some(sources) = source {
                    let pairs = args.get_item(0)?.try_iter()?.zip(sources.try_iter()?);
                    for (target, source) in pairs {
                        self.copy(&plan, &target?, &source?, free)?;
                    }
                }
            }
            Class::RecordStream => {
                if let Some(stream) = plan.argument(1, &self.words.stream, args, kwargs) {
                    self.noted(&plan, &args.get_item(0)?, &stream)?;
                }
            }
        }
        if self.has_heard() {
            self.tell_heard_in(&plan, args, kwargs, &result)?;
        }
        Ok(result)
    }

    /// Resumes recording.
    fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Pauses recording; operators still run if PyTorch calls.
    fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// Ends the check: from here on operators run without the recorder.
    fn end(&self) {
        self.stop();
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether any operator was observed.
    #[getter]
    fn has_heard_operators(&self) -> bool {
        !self.plans.lock().is_empty()
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Calls an operator.
#[inline]
fn called<'py>(
    plan: &Plan,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let kwargs = kwargs.map_or(std::ptr::null_mut(), |kwargs| kwargs.as_ptr());
    // SAFETY: the arguments are a callable, a tuple, and a dictionary or null, all live. The result is a new reference, or null
    // with an error set.
    unsafe {
        let got = ffi::PyObject_Call(plan.op.as_ptr(), args.as_ptr(), kwargs);
        Bound::from_owned_ptr_or_err(args.py(), got)
    }
}

impl Recorder {
    fn plan(&self, func: &Bound<'_, PyAny>) -> PyResult<Arc<Plan>> {
        let key = func.as_ptr() as usize;
        if let Some(known) = self.plans.lock().get(&key) {
            return Ok(known.clone());
        }
        let given: plan::Given = self.planner.bind(func.py()).call1((func,))?.extract()?;
        let plan = Plan::new(given, |name| self.names.lock().operator(name))?;
        let plan = Arc::new(plan);
        // The package keeps the operators alive, so that an address always means the same operator.
        self.plans.lock().insert(key, plan.clone());
        Ok(plan)
    }

    /// Whether a tensor's class defines its own dispatch.
    #[inline]
    fn is_foreign(&self, types: &Bound<'_, PyAny>) -> bool {
        let plain = |class: &Bound<'_, PyAny>| {
            self.plain.iter().any(|known| class.is(known)) || {
                let dispatch = class.getattr(&self.words.torch_dispatch);
                dispatch.is_ok_and(|dispatch| dispatch.is(&self.no_dispatch))
            }
        };
        let types = types.cast::<PyTuple>();
        types.is_ok_and(|types| !types.iter().all(|class| plain(&class)))
    }

    fn non_blocking(
        &self,
        plan: &Plan,
        at: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> bool {
        let given = plan.argument(at, &self.words.non_blocking, args, kwargs);
        given.is_some_and(|value| value.is_truthy().unwrap_or(false))
    }

    /// The current stream of a device.
    fn stream(&self, py: Python<'_>, device: u32) -> RawStream {
        let number = self.device_numbers.get(device as usize);
        let raw = self.current_stream.as_ref().zip(number);
        let raw = raw.and_then(|(ask, number)| {
            // SAFETY: the callable and its argument are live, and the list ends with a null pointer. The result
            // is a new reference, or null with an error set, which is taken away.
            unsafe {
                let null = std::ptr::null_mut::<ffi::PyObject>();
                let got = ffi::PyObject_CallFunctionObjArgs(ask.as_ptr(), number.as_ptr(), null);
                let got = Bound::from_owned_ptr_or_err(py, got).ok()?;
                got.extract::<u64>().ok()
            }
        });
        let raw = raw.unwrap_or_else(|| self.pretended.load(Ordering::Relaxed));
        RawStream::of(device, raw)
    }

    fn device(&self, py: Python<'_>) -> u32 {
        let asked = self.current_device.as_ref();
        let device = asked.and_then(|ask| ask.bind(py).call0().ok()?.extract().ok());
        device.unwrap_or(0)
    }

    /// Where the calling operation was called in the program.
    fn site(&self, py: Python<'_>, name: u32) -> Site {
        let (called, in_engine) = match self.stacks.try_lock().as_deref_mut() {
            Some(Some(stacks)) => {
                let called = stacks.now(py);
                (called, called.is_none())
            }
            _ => (None, false),
        };
        let backward = || {
            let above = self.backward.load(Ordering::Relaxed);
            above.saturating_sub(1) as u32
        };
        Site {
            name,
            stack: called.map_or_else(backward, |called| called.stack),
            thread: self.thread(py, in_engine),
            waits_by_itself: called.is_some_and(|called| called.waits_by_itself),
        }
    }

    /// Like [`Recorder::site`], by the operator's name.
    fn named(&self, py: Python<'_>, name: &str) -> Site {
        let name = self.names.lock().operator(name.to_owned());
        self.site(py, name)
    }

    fn thread(&self, py: Python<'_>, in_engine: bool) -> u32 {
        let (recorder, number) = THREAD.get();
        if recorder == self.id {
            return number;
        }
        let name = if in_engine {
            "backward".to_owned()
        } else {
            let name = self.thread_name.bind(py).call0();
            name.and_then(|name| name.extract()).unwrap_or_default()
        };
        let mut names = self.names.lock();
        let number = names.thread(name);
        THREAD.set((self.id, number));
        number
    }

    fn kernel<'py>(
        &self,
        plan: &Plan,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        result: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = args.py();
        let mut touched = Touched::default();
        plan.touched(&self.asked, args, kwargs, result, &mut touched);
        let device = touched.device();
        self.leave_foreign(&mut touched);
        let mut site = None;
        for (touch, tensor) in touched.touches.iter().zip(&touched.tensors) {
            if touch.device < 0 {
                self.by_host(py, plan.name, touch, tensor, &mut site)?;
            }
        }
        let Some(device) = device else {
            return Ok(());
        };
        let stream = self.stream(py, device);
        let site = site.unwrap_or_else(|| self.site(py, plan.name));
        let passed = plan.adds && self.is_accumulation(py);
        let waits = plan.waits(&self.asked, args, kwargs);
        if waits {
            self.compare(py, host::ALL, || site)?;
        }
        let mut core = self.core.lock();
        if passed {
            core.passed_by_engine(site, stream, &touched.touches);
        }
        let found = match plan.class {
            Class::Product => core.product(site, stream, &touched.touches),
            _ => core.operator(site, stream, &touched.touches),
        };
        if waits {
            core.stream_done(site, stream, Some(How::Read));
        }
        drop(core);
        self.look(py, found, &touched.touches, &touched.tensors)
    }

    /// Whether an addition is the engine's own: it sums the gradients of two nodes for the same input of a third, on
    /// whose stream it runs. An addition that a node itself makes is counted as one, too.
    #[cold]
    fn is_accumulation(&self, py: Python<'_>) -> bool {
        let Some(engine) = &self.engine else {
            return false;
        };
        if self.backwards.load(Ordering::Relaxed) == 0 || !stack::is_in(py, &engine.code) {
            return false;
        }
        // A leaf adds to its existing gradient, which the engine did not pass.
        let node = engine.node.as_ref().and_then(|ask| ask.call0(py).ok());
        let name = node.and_then(|node| node.call_method0(py, "name").ok()?.extract(py).ok());
        name.is_none_or(|name: String| !name.ends_with("AccumulateGrad"))
    }

    /// The engine passes gradients, a tuple or a single one, to work on this stream.
    fn passed(&self, given: &Bound<'_, PyAny>, site: Site, stream: RawStream) {
        let mut touched = Touched::default();
        let list = given.is_instance_of::<PyTuple>();
        touched.add(&self.asked, given.clone(), false, list);
        self.leave_foreign(&mut touched);
        // The engine records no stream for gradients on other devices: their user waits itself.
        let device = stream.device as i32;
        touched.touches.retain(|touch| touch.device == device);
        let mut core = self.core.lock();
        core.passed_by_engine(site, stream, &touched.touches);
    }

    /// Leaves out device memory that did not come from PyTorch's allocator. It follows rules of its own, which are
    /// not observed here: its owner may order its uses in ways that the check does not see.
    fn leave_foreign(&self, touched: &mut Touched<'_>) {
        if self.asked.pretend {
            return;
        }
        let mut unsure = Vec::new();
        {
            let core = self.core.lock();
            for (at, touch) in touched
                .touches
                .iter()
                .enumerate()
                .filter(|(_, t)| t.device >= 0)
            {
                match core.space.whose(touch.ptr, touch.end) {
                    Whose::Known => {}
                    Whose::KnownIfAt(start) => unsure.push((at, Some(start))),
                    Whose::Foreign => unsure.push((at, None)),
                }
            }
        }
        for (at, start) in unsure.into_iter().rev() {
            let is_there = |start| {
                let storage = self.storage(&touched.tensors[at]);
                storage.is_some_and(|(_, storage)| storage.0 == start)
            };
            if !start.is_some_and(is_there) {
                touched.touches.remove(at);
                touched.tensors.remove(at);
                self.core.lock().noticed.has_unseen = true;
            }
        }
    }

    /// `tensor.record_stream(stream)`.
    fn noted(
        &self,
        plan: &Plan,
        tensor: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = tensor.py();
        let raw = self.handle(stream);
        if let (Some(stream), Some(touch)) = (raw, self.asked.touch(tensor, false)) {
            let site = self.site(py, plan.name);
            self.core.lock().record_stream(site, &touch, stream);
        }
        Ok(())
    }

    /// The handle of a PyTorch stream, whichever stream class the object has.
    fn handle(&self, stream: &Bound<'_, PyAny>) -> Option<RawStream> {
        let device = stream.getattr("device_index").ok()?.extract().ok()?;
        let raw = match stream.getattr("cuda_stream") {
            Ok(raw) => raw.extract().ok()?,
            Err(_) => {
                let id = stream.getattr("stream_id").ok()?;
                let torch = stream.py().import("torch").ok()?;
                let kwargs = PyDict::new(stream.py());
                kwargs.set_item("stream_id", id).ok()?;
                kwargs.set_item("device_index", device).ok()?;
                kwargs
                    .set_item("device_type", stream.getattr("device_type").ok()?)
                    .ok()?;
                let class = torch.getattr("cuda").ok()?.getattr("Stream").ok()?;
                let whole = class.call((), Some(&kwargs)).ok()?;
                whole.getattr("cuda_stream").ok()?.extract().ok()?
            }
        };
        Some(RawStream { device, raw })
    }

    /// If something was found, records its description, and raises it if that was requested.
    #[inline]
    fn look(
        &self,
        py: Python<'_>,
        found: bool,
        touches: &[Touch],
        tensors: &[Bound<'_, PyAny>],
    ) -> PyResult<()> {
        if !found {
            return Ok(());
        }
        let fresh = self.describe(py, touches, tensors);
        if !self.raises {
            return Ok(());
        }
        match fresh {
            Some(race) => {
                let text = self.shown.bind(py).call1((self.raised(race),))?;
                Err(RaceError::new_err(text.unbind()))
            }
            None => Ok(()),
        }
    }
}
