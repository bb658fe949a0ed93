//! Watching a program while it runs: a checker, a recorder, or any other sink.

use std::io::Write;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Device;
use crate::check::{self, Findings, OnRace};
use crate::error::Result;
use crate::log::{Error, Recorder, Sink, SinkId};
use crate::tracker::{Runtime, as_thread};

impl Device {
    /// Checks every call of the machine from here on: whatever is not ordered and has to be is
    /// found, whether it went wrong this time or not. With [`OnRace::Panic`] the call that completes
    /// a race panics, which is meant for tests; with [`OnRace::Report`] the findings wait to be read.
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
    /// From here on the calls of all threads go one after the other.
    ///
    /// # Panics
    /// In a kernel in Rust.
    #[track_caller]
    pub fn checked(&self, on_race: OnRace) -> Findings {
        let (findings, sink) = check::live(on_race, check::LIVE_MEMORY_BYTES);
        self.listen(sink);
        findings
    }

    /// Records every call of the machine from here on, with the device's times, as an op log:
    /// `sidestream check FILE` checks it, `sidestream check FILE --trace OUT.json` draws it.
    ///
    /// # Ordering
    /// From here on the calls of all threads go one after the other, and the device keeps times,
    /// which on real hardware takes some microseconds an operation.
    ///
    /// # Errors
    /// What the file answers. What it answers later, and that its own code panicked, is told by
    /// [`Recording::finish`]; the program goes on.
    ///
    /// # Panics
    /// In a kernel in Rust.
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

    /// From here on this sink is told every call of the machine, in the sequence in which the driver
    /// gets them. In a child of a fork there are none.
    ///
    /// # Ordering
    /// While somebody listens the calls of all threads go one after the other.
    ///
    /// # Panics
    /// In a kernel in Rust.
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

    /// This sink is told nothing more, and is given back; none if it was taken before.
    ///
    /// # Panics
    /// In a kernel in Rust.
    #[track_caller]
    pub fn stop_listening(&self, sink: SinkId) -> Option<Box<dyn Sink>> {
        self.runtime.stop_listening(sink)
    }

    /// Names what the calling thread submits until the span is dropped: it appears in traces and in
    /// reports. Spans lie within each other: the one that began last has to be dropped first. On CUDA
    /// they are ranges of NVTX too, where its library is there.
    ///
    /// # Panics
    /// In a kernel in Rust.
    #[must_use = "a span ends when it is dropped"]
    #[track_caller]
    pub fn span(&self, name: &str) -> Span {
        self.runtime.refuse_kernels();
        self.begin_span(name, true)
    }

    /// The same around calls of our own, in which no code of the program runs. It is told to those who listen already:
    /// only another thread can begin to meanwhile, and misses the name.
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

/// A recording that runs. Dropped, it goes on until the machine goes, and may lack its end.
pub struct Recording<W: Write + Send + 'static> {
    runtime: Arc<Runtime>,
    recorder: Recorder<W>,
    sink: SinkId,
}

impl<W: Write + Send + 'static> Recording<W> {
    /// Ends the recording. Times of work that is not over yet are not in it: synchronise first.
    ///
    /// # Errors
    /// What the file answered, now or earlier: nothing that failed to be written is passed over.
    ///
    /// # Panics
    /// In a kernel in Rust.
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

/// A named part of what a thread does. See [`Device::span`].
#[derive(Debug)]
pub struct Span {
    runtime: Arc<Runtime>,
    /// The log has its beginning.
    is_told: bool,
    /// It ends on the thread where it began.
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
