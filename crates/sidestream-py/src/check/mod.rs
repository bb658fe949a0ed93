//! `sidestream.check`: a dispatch mode observes what PyTorch does, and passes it to the checker.
//!
//! [`Recorder`] is the mode. PyTorch calls it for every operator, and its callbacks for streams, events and memory
//! call it as well. This file reads their arguments; `spine` translates them.
//!
//! No lock is taken while Python code runs: Python may free a tensor at any time, and PyTorch then calls back here.

mod backward;
mod copies;
#[cfg(feature = "drive")]
mod drive;
mod events;
mod graphs;
mod held;
mod hooks;
mod host;
mod idle;
mod launches;
mod memory;
mod names;
mod plan;
mod reduce;
mod remarks;
mod report;
mod spine;
mod stack;
mod stores;
mod streams;
mod tensor;
mod threads;
mod torch;
mod touch;
mod ttir;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use backward::{Backward, Engine};
use events::Done;
use host::Guard;
use idle::How;
use memory::Whose;
use names::Names;
use plan::{Class, Plan, Touched};
use report::Details;
use spine::{Core, Site};
use stack::Stacks;
use streams::RawStream;
use torch::Torch;
use touch::Touch;

use crate::failure::RaceError;

/// Records what PyTorch does while it is checked.
#[pyclass(subclass, frozen, module = "sidestream._sidestream")]
pub struct Recorder {
    id: u64,
    on: AtomicBool,
    /// Whether the check has ended. A thread may keep the recorder in its stack of modes for longer.
    over: AtomicBool,
    raises: Raises,
    core: Mutex<Core>,
    /// Absent if places are not recorded. What runs while this is locked may give the interpreter to another thread,
    /// so no thread waits for it while it has the interpreter.
    stacks: Option<Mutex<Stacks>>,
    names: Mutex<Names>,
    details: Mutex<Details>,
    torch: Torch,
    backward: Backward,
    guard: Guard,
    /// The log of the run, if one is kept.
    kept: Mutex<Option<reduce::Kept>>,
}

/// Whether races are raised as exceptions.
struct Raises {
    on: bool,
    /// A race that was found where no exception can be raised: the next operator raises it.
    late: Mutex<Option<PyErr>>,
}

static RECORDERS: AtomicU64 = AtomicU64::new(1);

#[pymethods]
impl Recorder {
    #[new]
    #[pyo3(signature = (functions, engine, memory, raises, hidden, pretend))]
    fn new(
        functions: torch::Functions,
        engine: Option<Engine>,
        memory: u64,
        raises: bool,
        hidden: Option<(Vec<String>, Vec<String>, String)>,
        pretend: bool,
    ) -> Recorder {
        let mut names = Names::default();
        names.operator(String::new());
        Recorder {
            id: RECORDERS.fetch_add(1, Ordering::Relaxed),
            on: AtomicBool::new(true),
            over: AtomicBool::new(false),
            raises: Raises {
                on: raises,
                late: Mutex::default(),
            },
            core: Mutex::new(Core::new(memory)),
            stacks: hidden.map(|hidden| Mutex::new(Stacks::new(hidden))),
            names: Mutex::new(names),
            details: Mutex::default(),
            torch: Torch::new(functions, pretend),
            backward: Backward::new(engine),
            guard: Guard::default(),
            kept: Mutex::default(),
        }
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
        let number = |name| self.names.lock().operator(name);
        let plan = self.torch.plan(func, number)?;
        if !self.on.load(Ordering::Relaxed) || launches::is_muted() {
            return plan.op.bind(py).call(args, kwargs);
        }
        // A tensor subclass is dispatched first; the operators that it calls come here.
        if self.torch.is_foreign(types) {
            return Ok(py.NotImplemented().into_bound(py));
        }
        if self.raises.on
            && let Some(race) = self.raises.late.lock().take()
        {
            return Err(race);
        }
        // Host accesses before this operator are reported before the operator.
        if self.has_heard() {
            self.tell_heard(py, &[])?;
        }
        if self.torch.freed.is_much.load(Ordering::Relaxed) {
            self.look_at_freed(py);
        }
        idle::inside(true);
        let result = plan.op.bind(py).call(args, kwargs);
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
            Class::Copy | Class::ToCopy | Class::Copies => {
                self.copies(&plan, args, kwargs, &result)?;
            }
            Class::RecordStream => {
                if let Some(stream) = plan::value(1, intern!(py, "s"), args, kwargs) {
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
        !self.torch.plans.lock().is_empty()
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl Recorder {
    /// Asks the stacks, if they are recorded and this is not called by Python code that they run.
    fn in_stacks<T>(&self, ask: impl FnOnce(&mut Stacks) -> T) -> Option<T> {
        Some(ask(&mut *self.stacks.as_ref()?.try_lock()?))
    }

    /// Where the calling operation was called in the program.
    fn site(&self, py: Python<'_>, name: u32) -> Site {
        let called = self.in_stacks(|stacks| stacks.now(py));
        let in_engine = matches!(called, Some(None));
        let called = called.flatten();
        Site {
            name,
            stack: called.map_or_else(|| self.backward.stack(), |called| called.stack),
            thread: self.thread(py, in_engine),
            waits_by_itself: called.is_some_and(|called| called.waits_by_itself),
        }
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
        plan.touched(&self.torch.asked, args, kwargs, result, &mut touched);
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
        let stream = self.torch.stream(py, device);
        let site = site.unwrap_or_else(|| self.site(py, plan.name));
        let passed = plan.adds && self.backward.is_accumulation(py);
        if passed {
            let mut core = self.core.lock();
            core.passed_by_engine(site, stream, &touched.touches);
        }
        let waits = plan.waits(&self.torch.asked, args, kwargs);
        self.enqueued(
            py,
            (site, stream),
            &touched,
            plan.class == Class::Product,
            waits,
        )
    }

    /// Reports kernels in a stream. `waits` says whether the host then waits for them.
    fn enqueued(
        &self,
        py: Python<'_>,
        (site, stream): (Site, RawStream),
        touched: &Touched<'_>,
        is_product: bool,
        waits: bool,
    ) -> PyResult<()> {
        if waits {
            self.compare(py, host::ALL, || site)?;
        }
        let mut core = self.core.lock();
        let found = core.operator(site, stream, &touched.touches, is_product);
        if waits {
            core.done(site, Done::Stream(stream), Some(How::Read));
        }
        drop(core);
        self.look(py, found, &touched.touches, &touched.tensors)
    }

    /// Leaves out device memory that did not come from PyTorch's allocator. It follows rules of its own, which are
    /// not observed here: its owner may order its uses in ways that the check does not see.
    fn leave_foreign(&self, touched: &mut Touched<'_>) {
        if self.torch.asked.pretend {
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
        let raw = torch::handle(stream);
        if let (Some(stream), Some(touch)) = (raw, self.torch.asked.touch(tensor, false)) {
            let site = self.site(py, plan.name);
            self.core.lock().record_stream(site, &touch, stream);
        }
        Ok(())
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
        match fresh.filter(|_| self.raises.on) {
            Some(race) => {
                let text = self.torch.functions.shown.call1(py, (self.raised(race),))?;
                Err(RaceError::new_err(text))
            }
            None => Ok(()),
        }
    }
}
