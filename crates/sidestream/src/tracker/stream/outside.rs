//! What others may do with a stream: put work into it that no call here tells of, and capture it.
//!
//! # Work that nobody tells of
//! A stream is *shared* from when its handle is given away; an adopted one and the default streams are
//! from the beginning. What is known of a shared stream is true and may not be all: so its end is never
//! taken from what was recorded there before, or from what a thread has waited for. Whoever waits for it
//! gets a step of its own, with an event that is recorded for this wait; a question is put to the driver, about the stream itself. The end of memory that was noted
//! ([`record_stream`](crate::explicit::record_stream)) is such a step on any stream.
//!
//! # Captures
//! An event that is recorded in a stream that is being captured belongs to the capture, and draws in
//! whoever waits for it. So nothing of ours is recorded there for a call of the safe API. A stream on
//! which memory was noted gets an event before a capture of ours begins there, which stands for all that
//! it was given by then: nothing runs in it until the capture has ended. Of a shared stream, which other
//! code may capture, the driver is asked before each record and, for a capture that begins meanwhile, behind it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::super::mark::{Mark, Recorded, Unrecorded};
use super::super::runtime::{Place, Runtime, plain, write};
use super::super::threads::{Thread, as_thread};
use super::{Core, Stream};
use crate::backend::Payload;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::{Kind, OpId, ThreadId};
use crate::order::live::StreamClock;

/// How a stream came about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// By the safe API, which keeps it as long as the machine is there.
    Safe {
        /// Whether an event is recorded behind every call that uses memory.
        is_marking: bool,
    },
    /// By the explicit style.
    Explicit,
    /// By another library, which knows it by this handle.
    Adopted(u64),
}

impl Made {
    pub fn adopted(self) -> Option<u64> {
        match self {
            Made::Adopted(handle) => Some(handle),
            Made::Safe { .. } | Made::Explicit => None,
        }
    }
}

impl Core {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether other code may have put work into it.
    #[inline]
    pub fn is_shared(&self) -> bool {
        // Whoever submits by the handle got it from the thread that has set this, or from one that
        // it told.
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Its handle is given away.
    pub fn share(&self, runtime: &Runtime) {
        self.is_shared.store(true, Ordering::Relaxed);
        runtime.shares_streams.store(true, Ordering::Relaxed);
        runtime.meets_captures.store(true, Ordering::Relaxed);
    }

    /// Memory is noted on it.
    pub fn note(&self) {
        self.is_noted.store(true, Ordering::Relaxed);
    }

    pub fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Relaxed)
    }

    /// Where the uses of memory end that was noted here and goes now.
    pub fn noted_end(self: &Arc<Self>) -> Mark {
        let mut state = self.state.lock();
        if self.capture.get().is_some()
            && let Some(last) = &*self.last.lock()
            && last.point.covers(state.clock.point().epoch())
        {
            return Mark::Recorded(Arc::clone(last));
        }
        state.is_marked = false;
        state.clock.unseen();
        Mark::Stream(Arc::new(Unrecorded {
            point: state.clock.point(),
            stream: self.id,
            device: self.device,
            event: OnceLock::new(),
            core: match self.made {
                // The device keeps it.
                Made::Safe { .. } => None,
                Made::Explicit | Made::Adopted(_) => Some(Arc::clone(self)),
            },
        }))
    }

    /// Refuses to record anything here while the stream is being captured.
    pub(super) fn refuse_captured(&self, runtime: &Runtime) -> Result<()> {
        let is_ours = self.capture.get().is_some();
        match is_ours || self.is_shared() && runtime.backend.is_captured(self.id) {
            false => Ok(()),
            true => Err(self.captured()),
        }
    }

    #[cold]
    fn captured(&self) -> Error {
        Error::Invalid {
            call: "wait",
            why: format!(
                "stream {:?} is being captured, so that this call would become part of the capture instead of \
                 running; end the capture first",
                self.name
            ),
        }
    }

    /// Does something by which the stream joins a capture. What waits for memory that was noted here has an
    /// event from before, which `record` records.
    pub(super) fn join_capture(
        &self,
        before: Option<Arc<Recorded>>,
        join: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut last = self.last.lock();
        if before.is_some() {
            *last = before;
        }
        join()
    }
}

/// A stream that is gone: a new one may go on counting on its chain, behind its end.
pub(crate) struct Ended {
    clock: StreamClock,
    pub end: Arc<Recorded>,
}

impl Stream {
    /// Asks the driver about the stream itself, with all that anybody has put into it. An event that is recorded for the
    /// question would not be over when it is asked about at once: who asks again and again would never hear "yes".
    ///
    /// # Errors
    /// What the back end answers.
    #[track_caller]
    pub(crate) fn query_itself(&self, at: Place) -> Result<bool> {
        let runtime = &self.runtime;
        let kind = |done| Kind::QueryStream {
            stream: self.core.id,
            done,
        };
        // What another thread submits while this one asks is not known to be over.
        let point = self.core.end();
        let asked = |thread: &mut Thread| plain(thread.id, kind(false), &mut None, at);
        let op = as_thread(runtime, asked);
        let done = runtime.seen(runtime.backend.query(&op))?;
        let learned = |thread: &mut _| runtime.learned(thread, &point, kind(true), OpId(0), at);
        let done = done && as_thread(runtime, learned)?;
        runtime.raise();
        Ok(done)
    }

    /// Records the end of a stream that goes, so that another may count on its chain. Every chain makes every clock
    /// longer.
    ///
    /// # Errors
    /// What the back end answers, or that the stream is being captured: then nobody does.
    pub(crate) fn ended(&self, at: Place) -> Result<Ended> {
        let event = self.runtime.event(self.core.device, false)?;
        let kind = Kind::Record {
            event: event.id,
            stream: self.core.id,
        };
        let end = Arc::new(self.record_as(event, kind, at)?);
        let clock = self.core.state.lock().clock.clone();
        Ok(Ended { clock, end })
    }

    /// A new stream goes on on the chain of another one, whose end it waits for: that is over, so it holds nothing up, and
    /// the log has it.
    ///
    /// # Errors
    /// What the back end answers; it has its own chain then.
    pub(crate) fn go_on_as(&self, ended: Ended, at: Place) -> Result<()> {
        self.begin(at, |step| {
            step.submit(Kind::Wait {
                stream: self.core.id,
                event: ended.end.event.id,
            })?;
            let unused = std::mem::replace(&mut step.state.clock, ended.clock);
            self.runtime.leave_chain(unused.chain());
            step.state.clock.submitted(&step.thread.clock);
            Ok(())
        })
    }
}

impl Runtime {
    /// The stream of a mark, if others may put work into it or capture it.
    fn outside(&self, mark: &Unrecorded) -> Option<Arc<Core>> {
        match &mark.core {
            Some(core) => Some(Arc::clone(core)),
            None if self.shares_streams.load(Ordering::Relaxed) => {
                let core = self.device(mark.device).streams.find(mark.stream);
                core.filter(|core| core.is_shared())
            }
            None => None,
        }
    }

    /// An event behind a point that has none: one that was recorded for somebody else, or one that is
    /// recorded now, later than needed and never too early. Who asks again gets the same: a new one would be over later
    /// each time.
    ///
    /// # Errors
    /// If the stream is being captured, or what the back end answers.
    pub fn event_behind(
        &self,
        mark: &Unrecorded,
        thread: ThreadId,
        pen: &mut Option<Pen<'_>>,
        at: Place,
    ) -> Result<Arc<Recorded>> {
        if let Some(recorded) = mark.event.get() {
            return Ok(Arc::clone(recorded));
        }
        let recorded = self.new_event_behind(mark, thread, pen, at)?;
        // Another thread may have recorded one, which is as good.
        let _ = mark.event.set(Arc::clone(&recorded));
        Ok(recorded)
    }

    fn new_event_behind(
        &self,
        mark: &Unrecorded,
        thread: ThreadId,
        pen: &mut Option<Pen<'_>>,
        at: Place,
    ) -> Result<Arc<Recorded>> {
        let core = self.outside(mark);
        // Of the device of the stream in which it is recorded, which may be another than the caller's (R43).
        let event = self.event(mark.device, false)?;
        let kind = Kind::Record {
            event: event.id,
            stream: mark.stream,
        };
        let record = |pen: &mut Option<Pen<'_>>| {
            let op = plain(thread, kind, pen, at);
            // SAFETY: it names no memory; the stream is held by whoever noted it, and the event is new.
            self.seen(unsafe { self.backend.submit(&op, Payload::None) })?;
            write(pen, &op);
            Ok(())
        };
        let recorded = Arc::new(Recorded {
            point: mark.point.clone(),
            stream: mark.stream,
            event,
        });
        let Some(core) = core else {
            return record(pen).map(|()| recorded);
        };
        let mut last = core.last.lock();
        if let Some(last) = &*last
            && last.point.covers(mark.point.epoch())
        {
            return Ok(Arc::clone(last));
        }
        core.refuse_captured(self)?;
        record(pen)?;
        // Other code does not ask us before it begins a capture.
        if core.is_shared() {
            core.refuse_captured(self)?;
        }
        *last = Some(Arc::clone(&recorded));
        Ok(recorded)
    }

    /// The same mark with an event, where its stream may not be asked itself: others may have put more into
    /// it, or be about to capture it.
    pub fn event_of_others(
        &self,
        mark: &Unrecorded,
        thread: ThreadId,
        pen: &mut Option<Pen<'_>>,
        at: Place,
    ) -> Result<Option<Mark>> {
        match self.outside(mark) {
            None => Ok(None),
            Some(_) => {
                let recorded = self.event_behind(mark, thread, pen, at)?;
                Ok(Some(Mark::Recorded(recorded)))
            }
        }
    }
}
