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

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::mark::{Mark, Unrecorded};
use super::recorded::Recorded;
use super::runtime::Runtime;
use super::streams::Core;
use super::telling::{Place, plain, write};
use crate::backend::Payload;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::{Kind, ThreadId};

impl Core {
    /// Its handle is given away.
    pub(crate) fn share(&self, runtime: &Runtime) {
        self.is_shared.store(true, Ordering::Relaxed);
        runtime.shares_streams.store(true, Ordering::Relaxed);
        runtime.meets_captures.store(true, Ordering::Relaxed);
    }

    /// Refuses to record anything here while the stream is being captured.
    pub(crate) fn refuse_captured(&self, runtime: &Runtime) -> Result<()> {
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
    pub(crate) fn event_behind(
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
    pub(crate) fn event_of_others(
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
