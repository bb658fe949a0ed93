//! Observing a program while it runs, with a checker, a recorder, or any other sink.

use std::io::Write;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Device;
use crate::check::{self, Findings, OnRace};
use crate::error::Result;
use crate::log::{Error, Recorder, Sink, SinkId};
use crate::tracker::{Runtime, as_thread};

impl Device {
    /// Checks every call of the machine from here on: missing order is found whether or not it caused a wrong result
    /// in this run. With [`OnRace::Panic`] the call that completes a race panics, which is meant for tests; with
    /// [`OnRace::Report`] the findings are collected for the caller to read.
    ///
    /// ```
    /// use sidestream::check::OnRace;
    /// use sidestream::device::Device;
    ///
    /// let device = Device::open("sim:h200")?;
    /// let findings = device.checked(OnRace::Report);
    /// let (a, b) = (device.stream("a")?, device.stream("b")?);
    /// let mut buffer = a.alloc::<u32>(64)?;
    /// a.memset(buffer.view_mut(), 1)?;
    /// b.memset(buffer.view_mut(), 2)?;
    /// assert!(findings.report().races.is_empty());
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Ordering
    /// From here on the calls of all threads run one at a time.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn checked(&self, on_race: OnRace) -> Findings {
        let (findings, sink) = check::live(on_race, check::LIVE_MEMORY_BYTES);
        self.listen(sink);
        findings
    }

    /// Records every call of the machine from here on, with the device's times, as an op log: `sidestream check FILE`
    /// checks the log, `sidestream check FILE --trace OUT.json` makes a timeline of it.
    ///
    /// # Ordering
    /// From here on the calls of all threads run one at a time, and the device keeps times, which on real hardware
    /// costs some microseconds per operation.
    ///
    /// # Errors
    /// Any error of writing to `out` now. Later write errors, and a panic in the writer's own code, are returned by
    /// [`Recording::finish`]; the program continues.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn record<W: Write + Send + 'static>(&self, out: W) -> Result<Recording<W>, Error> {
        let (recorder, sink) = Recorder::with_times(out)?;
        let sink = self.listen(sink);
        Ok(Recording {
            runtime: Arc::clone(&self.runtime),
            recorder,
            sink,
        })
    }

    /// Passes every call of the machine from here on to this sink, in the order in which the driver gets them. In a
    /// child of a fork there are no calls.
    ///
    /// # Ordering
    /// While a sink is attached the calls of all threads run one at a time.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn listen(&self, sink: Box<dyn Sink>) -> SinkId {
        self.runtime.refuse_kernels();
        if !self.runtime.backend.is_this_process() {
            return SinkId::NONE;
        }
        let id = self.runtime.live.attach(sink);
        self.runtime.ask_for_times();
        id
    }

    /// Detaches this sink and returns it; `None` if it was already detached.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn stop_listening(&self, sink: SinkId) -> Option<Box<dyn Sink>> {
        self.runtime.stop_listening(sink)
    }

    /// Names the work that the calling thread submits until the span is dropped: the name appears in traces and
    /// reports. Spans nest: the one that began last has to be dropped first. On CUDA devices, spans are also NVTX
    /// ranges if the NVTX library is installed.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[must_use = "a span ends when it is dropped"]
    #[track_caller]
    pub fn span(&self, name: &str) -> Span {
        self.runtime.refuse_kernels();
        self.begin_span(name, true)
    }

    /// Like [`Device::span`], but around calls of the runtime, in which no code of the program runs. Only sinks that
    /// are already attached see the span: a sink that another thread attaches meanwhile misses the name.
    #[must_use = "a span ends when it is dropped"]
    pub(crate) fn own_span(&self, name: &str) -> Span {
        self.begin_span(name, self.runtime.live.is_on())
    }

    fn begin_span(&self, name: &str, is_told: bool) -> Span {
        let runtime = Arc::clone(&self.runtime);
        if runtime.backend.is_this_process() {
            if is_told {
                as_thread(&runtime, |thread| runtime.live.span(thread.id, Some(name)));
            }
            runtime.backend.range(Some(name));
        }
        Span {
            runtime,
            is_told,
            stays_here: PhantomData,
        }
    }
}

/// A recording in progress. If it is dropped, recording continues until the machine is dropped, and the log may lack
/// its end.
pub struct Recording<W: Write + Send + 'static> {
    runtime: Arc<Runtime>,
    recorder: Recorder<W>,
    sink: SinkId,
}

impl<W: Write + Send + 'static> Recording<W> {
    /// Ends the recording. Times of work that is not complete yet are missing: synchronize first.
    ///
    /// # Errors
    /// Any error of writing, now or earlier: no failed write goes unreported.
    ///
    /// # Panics
    /// If it is called from a kernel written in Rust.
    #[track_caller]
    pub fn finish(self) -> Result<W, Error> {
        self.runtime.refuse_kernels();
        if self.runtime.backend.is_this_process() {
            self.runtime.tell_times();
            drop(self.runtime.stop_listening(self.sink));
        }
        self.recorder.finish()
    }
}

/// A named section of a thread's work. See [`Device::span`].
#[derive(Debug)]
pub struct Span {
    runtime: Arc<Runtime>,
    /// Whether the beginning of the span is in the log.
    is_told: bool,
    /// Not `Send`: a span ends on the thread on which it began.
    stays_here: PhantomData<*const ()>,
}

impl Drop for Span {
    fn drop(&mut self) {
        if !self.runtime.backend.is_this_process() {
            return;
        }
        if self.is_told {
            as_thread(&self.runtime, |thread| {
                self.runtime.live.span(thread.id, None)
            });
        }
        self.runtime.backend.range(None);
    }
}

impl Runtime {
    fn ask_for_times(&self) {
        self.backend.keep_times(self.live.wants_times());
    }

    #[track_caller]
    fn stop_listening(&self, sink: SinkId) -> Option<Box<dyn Sink>> {
        self.refuse_kernels();
        if !self.backend.is_this_process() {
            return None;
        }
        let sink = self.live.detach_one(sink);
        self.ask_for_times();
        sink
    }
}
