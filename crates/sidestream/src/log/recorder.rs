//! Records a running program in a file.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::live::{LAST_OP, message};
use super::{Error, Problem, Record, Sink, Writer};
use crate::op::OpId;
use crate::process::Process;

/// A recording of a running program as an op log, which `sidestream check` reads.
///
/// A recording has two halves: the sink that is attached to the program's [`Live`](super::Live), and this handle, which
/// ends the recording. They may be used in any order and on any thread: records that reach the sink after
/// [`Recorder::finish`] are not written. When both halves are dropped, the log is ended, and an error is ignored.
///
/// The log is written in blocks of 64 KiB. If the process ends before the recording, the file is readable up
/// to its last complete record.
///
/// # Errors
/// The first error during the run ends the recording, and [`Recorder::finish`] returns it. The part written before stays
/// readable, without an end record. A panic in the code of the file ends the recording too, with an error of the
/// kind [`Other`](std::io::ErrorKind::Other).
///
/// ```
/// use sidestream::log::{Live, Reader, Recorder};
/// use sidestream::op::*;
///
/// let live = Live::default();
/// let (recorder, sink) = Recorder::new(Vec::new())?;
/// live.attach(sink);
/// let stream = live.new_stream(StreamKind::NonBlocking, DeviceId(0), "upload");
/// let thread = live.new_thread("main");
/// if let Some(mut pen) = live.write() {
///     let (id, site) = (pen.next_op(), pen.site(std::panic::Location::caller()));
///     let kind = Kind::SyncStream { stream };
///     pen.op(&Op { id, thread, site, kind, accesses: Accesses::new() });
/// }
/// let bytes = recorder.finish()?;
/// assert_eq!(Reader::new(&bytes[..])?.count(), 4);
/// # Ok::<(), sidestream::log::Error>(())
/// ```
pub struct Recorder<W: Write + Send + 'static> {
    tape: Arc<Mutex<Tape<W>>>,
    process: Process,
}

/// The state shared by the two halves.
struct Tape<W: Write> {
    /// The writer; `None` once the recording has ended.
    log: Option<Writer<W>>,
    failed: Option<Error>,
    /// The process that owns the file. A child of a fork has a copy of the bytes that were not written yet.
    process: Process,
}

/// The sink, which receives the records.
struct Half<W: Write> {
    tape: Arc<Mutex<Tape<W>>>,
    timed: bool,
    /// The first operation in the log; a sink attached late does not know earlier ones.
    first: Option<OpId>,
}

impl<W: Write + Send + 'static> Recorder<W> {
    /// Starts a log without times.
    ///
    /// # Errors
    /// An error of the file.
    pub fn new(out: W) -> Result<(Recorder<W>, Box<dyn Sink>), Error> {
        Recorder::start(out, false)
    }

    /// Starts a log with the times of each operation, so that the run can be shown in a trace.
    ///
    /// # Errors
    /// An error of the file.
    pub fn with_times(out: W) -> Result<(Recorder<W>, Box<dyn Sink>), Error> {
        Recorder::start(out, true)
    }

    fn start(out: W, timed: bool) -> Result<(Recorder<W>, Box<dyn Sink>), Error> {
        let tape = Arc::new(Mutex::new(Tape {
            log: Some(Writer::new(out)?),
            failed: None,
            process: Process::this(),
        }));
        let half = Half {
            tape: tape.clone(),
            timed,
            first: None,
        };
        let process = Process::this();
        Ok((Recorder { tape, process }, Box::new(half)))
    }

    /// Writes everything recorded so far to the file, so that it survives the end of this process. If that
    /// fails, the recording ends, and [`Recorder::finish`] returns the error.
    ///
    /// Does nothing in a child of a fork: the file belongs to the parent.
    pub fn flush(&self) {
        if self.process.is_this() {
            self.tape.lock().write(Writer::flush);
        }
    }

    /// Ends the log and returns the file.
    ///
    /// # Errors
    /// The first error of the file during the whole recording, or the first record that did not meet one of the
    /// [conditions](super#conditions). Also in a child of a fork, which writes nothing to the file of its parent.
    pub fn finish(self) -> Result<W, Error> {
        if !self.process.is_this() {
            let why =
                "the recording belongs to the process from which this one was forked; end it there";
            return Err(Error {
                offset: 0,
                problem: Problem::Io(io::Error::other(why)),
            });
        }
        let mut tape = self.tape.lock();
        match (tape.failed.take(), tape.log.take()) {
            (None, Some(log)) => {
                let error = log.error(panicked(""));
                catch_unwind(AssertUnwindSafe(|| log.finish())).unwrap_or_else(|panic| {
                    Err(Error {
                        problem: panicked(&message(panic)),
                        ..error
                    })
                })
            }
            (Some(error), _) => Err(error),
            // Only this function leaves both empty, and it consumes the handle.
            (None, None) => unreachable!("a recording is finished once"),
        }
    }
}

impl<W: Write> Tape<W> {
    /// Writes to the log, unless the recording has ended.
    #[inline]
    fn write<T>(&mut self, what: impl FnOnce(&mut Writer<W>) -> Result<T, Error>) {
        let Some(log) = &mut self.log else { return };
        match catch_unwind(AssertUnwindSafe(|| what(log))) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.fail(error),
            Err(panic) => {
                let error = log.error(panicked(&message(panic)));
                self.fail(error);
            }
        }
    }

    #[cold]
    fn fail(&mut self, error: Error) {
        self.failed = Some(error);
        // A dropped writer still flushes its buffer, but writes no end record, since the log is incomplete.
        let log = self.log.take();
        without_panic(|| drop(log));
    }
}

fn panicked(message: &str) -> Problem {
    Problem::Io(io::Error::other(format!("the file panicked: {message}")))
}

/// Calls a function that may panic in the code of the file, where the error cannot be reported.
fn without_panic(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        let _unheard = message(panic);
    }
}

impl<W: Write> Drop for Tape<W> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return std::mem::forget(self.log.take());
        }
        if let Some(log) = self.log.take() {
            // An error is ignored here; a caller that needs the error calls `finish`.
            without_panic(|| _ = log.finish());
        }
    }
}

impl<W: Write + Send> Sink for Half<W> {
    #[inline]
    fn take(&mut self, record: &Record<'_>) {
        if let Record::Op(op) = record {
            self.first.get_or_insert(op.id);
        } else if let Record::Done(done) = record
            && !(self.timed && self.first.is_some_and(|first| first <= done.op))
        {
            return;
        }
        self.tape.lock().write(|log| log.take(record));
    }

    fn wants_times(&self) -> bool {
        self.timed
    }

    fn full(&mut self) {
        let (what, limit) = ("operations", u64::from(LAST_OP) + 1);
        let mut tape = self.tape.lock();
        let problem = Problem::TooMuch { what, limit };
        tape.write(|log| Err::<(), _>(log.error(problem)));
    }
}
