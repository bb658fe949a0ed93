//! The calls from PyTorch's callbacks and from the package's own wrappers.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;

use super::Recorder;
use super::events::Done;
use super::idle::{self, How};
use super::plan::Touched;
use super::remarks;
use super::spine::{Core, Site};
use super::streams::RawStream;
use super::threads::Threads;

impl Recorder {
    /// Records an operator's error, if it may come from earlier work.
    #[cold]
    pub(super) fn failed_in(&self, py: Python<'_>, name: u32, error: PyErr) -> PyErr {
        let text = error.value(py).to_string();
        if remarks::is_late(&text) {
            let (site, device) = (self.site(py, name), self.torch.device(py));
            self.core.lock().failed(site, device, text, false);
        }
        error
    }

    /// Queries which freed memory cannot be reused yet.
    #[cold]
    pub(super) fn look_at_freed(&self, py: Python<'_>) {
        self.torch.freed.is_much.store(false, Ordering::Relaxed);
        if let Some(pending) = self.torch.pending(py) {
            self.core.lock().noticed.held.looked(&pending);
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Reports a call that has a place in the program.
    fn told(&self, py: Python<'_>, name: &str, tell: impl FnOnce(&mut Core, Site)) {
        if self.is_on() {
            let site = self.named(py, name);
            tell(&mut self.core.lock(), site);
        }
    }

    /// Reports a call that blocks the host, or one that shows that work is complete: then there is no `how`.
    pub(super) fn done(&self, py: Python<'_>, name: &str, what: Done, how: Option<How>) {
        if !self.is_on() {
            return;
        }
        // PyTorch accepts no exception here: the next operator raises what was found.
        if let Err(race) = self.compare(py, super::host::ALL, || self.named(py, name)) {
            *self.raises.late.lock() = Some(race);
        }
        self.told(py, name, |core, site| {
            core.done(site, what, how.map(How::told));
        });
    }

    /// Like `told`, for a call that names a stream, whose name is looked up if it is unknown.
    fn told_of(
        &self,
        py: Python<'_>,
        name: &str,
        stream: RawStream,
        tell: impl FnOnce(&mut Core, Site),
    ) {
        let mut lacks_name = false;
        self.told(py, name, |core, site| {
            tell(core, site);
            let stream = core.stream(stream);
            lacks_name = core.streams.lacks_name(stream, site.stack);
        });
        if lacks_name {
            let [name, _] = self.torch.called(py, [Some(stream), None]);
            self.core.lock().learn_name(stream, name);
        }
    }

    /// Reports what this thread does to `threads`, if there are several threads.
    pub(super) fn of_threads(&self, py: Python<'_>, tell: impl FnOnce(&mut Threads, u32)) {
        if self.core.lock().threads.is_some() {
            let thread = self.thread(py, false);
            if let Some(threads) = &mut self.core.lock().threads {
                tell(threads, thread);
            }
        }
    }

    /// Reports what threads did with host memory before they hand it over.
    fn settled(&self, py: Python<'_>) {
        if self.has_heard()
            && let Err(race) = self.tell_heard(py, &[])
        {
            *self.raises.late.lock() = Some(race);
        }
    }

    /// A stream by its handle, of the current device unless another one is given.
    fn raw(&self, py: Python<'_>, raw: u64, device: Option<u32>) -> RawStream {
        RawStream::of(device.unwrap_or_else(|| self.torch.device(py)), raw)
    }
}

/// The first arguments are those of PyTorch's callbacks. This package's own streams and events, which PyTorch does not
/// see, have a device besides.
#[pymethods]
impl Recorder {
    fn on_event_creation(&self, py: Python<'_>, event: u64) {
        if self.is_on() {
            let device = self.torch.device(py);
            self.core.lock().event_created(event, device);
        }
    }

    fn on_event_deletion(&self, event: u64) {
        if self.is_on() {
            self.core.lock().event_deleted(event);
        }
    }

    /// `event.record(stream)`.
    #[pyo3(signature = (event, stream, device=None))]
    fn event_record(&self, py: Python<'_>, event: u64, stream: u64, device: Option<u32>) {
        let stream = self.raw(py, stream, device);
        self.told_of(py, "Event.record", stream, |core, site| {
            core.event_record(site, event, stream);
        });
    }

    /// `stream.wait_event(event)`.
    #[pyo3(signature = (event, stream, device=None))]
    fn event_wait(&self, py: Python<'_>, event: u64, stream: u64, device: Option<u32>) {
        let stream = self.raw(py, stream, device);
        let in_backward = self.backward.is_running();
        self.told_of(py, "Stream.wait_event", stream, |core, mut site| {
            site.waits_by_itself |= in_backward;
            core.event_wait(site, event, stream);
        });
    }

    fn on_memory_allocation(&self, py: Python<'_>, ptr: u64) {
        if self.is_on() {
            let stream = self.torch.stream(py, self.torch.device(py));
            self.core.lock().allocated(ptr, stream);
        }
    }

    fn on_memory_deallocation(&self, ptr: u64) {
        if self.is_on() {
            let mut core = self.core.lock();
            core.freed(ptr, Site::default());
            if core.noticed.held.is_due() {
                self.torch.freed.is_much.store(true, Ordering::Relaxed);
            }
        }
    }

    /// PyTorch's own streams are all alike, so their creation is not reported.
    fn on_stream_creation(&self, _stream: u64) {}

    #[pyo3(signature = (device=None))]
    fn device_synchronize(&self, py: Python<'_>, device: Option<u32>) {
        let device = device.unwrap_or_else(|| self.torch.device(py));
        let how = Some(How::Stream);
        self.done(py, "torch.cuda.synchronize", Done::Device(device), how);
    }

    #[pyo3(signature = (stream, device=None))]
    fn stream_synchronize(&self, py: Python<'_>, stream: u64, device: Option<u32>) {
        let stream = self.raw(py, stream, device);
        let how = Some(How::Stream);
        self.done(py, "Stream.synchronize", Done::Stream(stream), how);
    }

    fn on_event_synchronization(&self, py: Python<'_>, event: u64) {
        let how = Some(How::Event);
        self.done(py, "Event.synchronize", Done::Event(event), how);
    }

    /// `event.query()` returned true.
    fn event_complete(&self, py: Python<'_>, event: u64) {
        self.done(py, "Event.query", Done::Event(event), None);
    }

    /// The program computes the time between two events.
    fn time_taken(&self, py: Python<'_>, start: u64, end: u64) {
        if self.is_on() {
            let thread = self.thread(py, false);
            self.core.lock().time_of_events(thread, [start, end]);
        }
    }

    /// The program begins to print a tensor, which calls no operator that could be observed.
    fn print_begins(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        idle::inside(true);
        let py = tensor.py();
        let mut touched = Touched::default();
        touched.add(&self.torch.asked, tensor.clone(), false, false);
        let Some(device) = touched.device().filter(|_| self.is_on()) else {
            return Ok(());
        };
        self.leave_foreign(&mut touched);
        let stream = self.torch.stream(py, device);
        let site = self.named(py, "print");
        self.enqueued(py, (site, stream), &touched, false, true)
    }

    /// The program has printed the tensor.
    fn print_ends(&self) {
        idle::inside(false);
    }

    /// `stream.query()` returned true.
    fn stream_complete(&self, py: Python<'_>, stream: u64, device: u32) {
        let stream = RawStream::of(device, stream);
        self.done(py, "Stream.query", Done::Stream(stream), None);
    }

    /// The program makes a stream. Returns what to pass to `stream_let_go`.
    fn stream_made(&self, py: Python<'_>, device: u32, stream: u64) -> (usize, u32) {
        let mut made = (usize::MAX, 0);
        let stream = RawStream::of(device, stream);
        self.told(py, "torch.cuda.Stream", |core, site| {
            made = core.stream_made(site, stream);
        });
        made
    }

    /// The program has dropped the stream.
    fn stream_let_go(&self, at: usize, steps: u32, device: u32, stream: u64) {
        let stream = RawStream::of(device, stream);
        self.core.lock().stream_let_go(at, stream, steps);
    }

    /// A wait raised an error.
    fn wait_failed(&self, py: Python<'_>, name: &str, text: String) {
        if remarks::is_late(&text) {
            let device = self.torch.device(py);
            self.told(py, name, |core, site| core.failed(site, device, text, true));
        }
    }

    /// Sets the callback that returns the freed memory that cannot be reused yet.
    fn watch_freed(&self, pending: Py<PyAny>) {
        *self.torch.freed.pending.lock() = Some(pending);
    }

    /// The program has ended: no more calls follow, and all of them were reported.
    fn program_over(&self) {
        self.core.lock().noticed.is_over = self.is_on();
    }

    /// A stream that PyTorch did not make is blocking: the default stream waits for it.
    fn stream_is_blocking(&self, stream: u64) {
        self.core.lock().streams.note_blocking(stream);
    }

    /// Memory of PyTorch's allocator that belongs to the stream, without the call that allocated it.
    #[pyo3(signature = (ptr, stream, device=0))]
    fn allocated(&self, ptr: u64, stream: u64, device: u32) {
        let stream = RawStream::of(device, stream);
        self.core.lock().allocated(ptr, stream);
    }

    /// The host is about to read or write a tensor without an operator that shows it.
    fn host_uses(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        write: bool,
        name: &str,
    ) -> PyResult<()> {
        if !self.is_on() {
            return Ok(());
        }
        let touch = self.torch.asked.touch(tensor, write);
        let Some(touch) = touch.filter(|touch| touch.device < 0) else {
            return Ok(());
        };
        let name = self.names.lock().operator(name.to_owned());
        self.by_host(py, name, &touch, tensor, &mut None)
    }

    /// The host has used the tensor: the accesses that the guard recorded are reported.
    fn host_used(&self, tensor: &Bound<'_, PyAny>, write: bool) -> PyResult<()> {
        if !self.has_heard() {
            return Ok(());
        }
        let touch = self.torch.asked.touch(tensor, write);
        self.tell_heard(tensor.py(), touch.as_slice())
    }

    #[pyo3(signature = (key, of_all_threads=true))]
    fn capture_begin(&self, key: u64, of_all_threads: bool) {
        if self.is_on() {
            self.core.lock().capture_begin(key, of_all_threads);
        }
    }

    fn capture_end(&self) {
        if self.is_on() {
            self.core.lock().capture_end();
        }
    }

    fn replay(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        let stream = self.torch.stream(py, self.torch.device(py));
        let mut found = false;
        self.told(py, "CUDAGraph.replay", |core, site| {
            found = core.replay(site, key, stream);
        });
        self.look(py, found, &[], &[])
    }

    /// A thread starts another one: from here on, the calling thread of each operation matters.
    fn threads_begin(&self, py: Python<'_>) {
        let thread = self.thread(py, false);
        let mut core = self.core.lock();
        let threads = core.threads.get_or_insert_with(Threads::new);
        threads.begins(thread);
    }

    /// A thread begins. Its name is passed, since Python does not know it yet.
    fn thread_begins(&self, py: Python<'_>, name: String, what: u64) {
        self.register(name);
        self.of_threads(py, Threads::begins);
        self.take_over(py, what);
    }

    /// The thread hands an object over to others, which identify it by this number.
    fn hand_over(&self, py: Python<'_>, what: u64) {
        self.settled(py);
        let thread = self.thread(py, false);
        self.core.lock().noticed.idle.handed_over(thread);
        self.of_threads(py, |threads, thread| threads.hand_over(thread, what));
    }

    /// The thread takes the object over.
    fn take_over(&self, py: Python<'_>, what: u64) {
        self.settled(py);
        self.of_threads(py, |threads, thread| threads.take_over(thread, what));
    }

    /// Forgets an object that no thread will take over again.
    fn forget_over(&self, what: u64) {
        if let Some(threads) = &mut self.core.lock().threads {
            threads.forget(what);
        }
    }

    /// The program reads the host's clock.
    fn clock_read(&self, py: Python<'_>, name: &str) {
        self.told(py, name, |core, site| {
            // Without stacks there are no lines to name.
            if site.stack != 0 {
                core.noticed.clock_read(site, &core.findings);
            }
        });
    }

    /// The amount of pinned host memory reached a new maximum.
    fn much_pinned(&self, py: Python<'_>, bytes: u64) {
        self.told(py, "pin_memory", |core, site| {
            core.noticed.pinned = Some((bytes, site));
        });
    }

    /// Whether more than one stream was observed.
    fn has_streams(&self) -> bool {
        self.core.lock().streams.all.len() > 1
    }

    /// The frames of a stack, the innermost first: the code object, and the offset in it.
    fn frames(&self, py: Python<'_>, stack: u32) -> Vec<(Py<PyAny>, i32)> {
        let Some(stacks) = &self.stacks else {
            return Vec::new();
        };
        loop {
            if let Some(stacks) = stacks.try_lock() {
                return stacks.frames(py, stack);
            }
            py.detach(std::thread::yield_now);
        }
    }
}
