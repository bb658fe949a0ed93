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
/// It comes as two halves: the sink that is attached to the program's [`Live`](super::Live), and
/// this handle, by which the recording is ended. They may be used in any order and on any thread:
/// what the sink is told after [`Recorder::finish`] is not written. If neither is there any more,
/// the log is ended as well as it can be.
///
/// The log is written in blocks of 64 KiB. If the process ends in between, the file is readable up
/// to the last record that is whole in it.
///
/// # Errors
/// While the program runs nobody can be told of an error: the first ends the recording and is what
/// [`Recorder::finish`] gives. What was written before it stays readable, without an end record. A file whose own code
/// panics ends it too, with an error of the kind [`Other`](std::io::ErrorKind::Other).
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

/// What the two halves share.
struct Tape<W: Write> {
    /// None once the recording is over.
    log: Option<Writer<W>>,
    failed: Option<Error>,
    /// Of which the file is. A child of a fork has a copy of what was not handed to the file yet.
    process: Process,
}

/// The half that is told.
struct Half<W: Write> {
    tape: Arc<Mutex<Tape<W>>>,
    timed: bool,
    /// The first operation in the log; a late sink does not know the ones before.
    first: Option<OpId>,
}

impl<W: Write + Send + 'static> Recorder<W> {
    /// Starts a log without times.
    ///
    /// # Errors
    /// What the file answers.
    pub fn new(out: W) -> Result<(Recorder<W>, Box<dyn Sink>), Error> {
        Recorder::start(out, false)
    }

    /// Starts a log that says when each operation ran, so that the run can be shown in a trace.
    ///
    /// # Errors
    /// What the file answers.
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

    /// Hands everything told so far to the file, so that it survives the end of this process. If
    /// that fails, the recording is over and [`Recorder::finish`] says why.
    ///
    /// In a child of a fork it does nothing: the file is its parent's.
    pub fn flush(&self) {
        if self.process.is_this() {
            self.tape.lock().write(Writer::flush);
        }
    }

    /// Ends the log and gives the file back.
    ///
    /// # Errors
    /// The first that the file gave, or the first of the [conditions](super#conditions) that a
    /// record did not meet, in the whole recording. Also in a child of a fork, which writes nothing to the file of its parent.
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
            // Only this function leaves it so, and it takes the handle.
            (None, None) => unreachable!("a recording is finished once"),
        }
    }
}

impl<W: Write> Tape<W> {
    /// Writes something, unless the recording is over.
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
        // Dropped, it still hands on what it holds, but writes no end: something is missing.
        let log = self.log.take();
        without_panic(|| drop(log));
    }
}

fn panicked(message: &str) -> Problem {
    Problem::Io(io::Error::other(format!("the file panicked: {message}")))
}

/// Does something with a file whose own code may panic, where nobody can be told.
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
            // Whoever wants to hear of an error calls `finish`.
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
