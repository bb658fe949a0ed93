//! Streams that other code may use: it may put work into them that no call here observes, and it may capture them.
//!
//! # Work that no call observes
//! A stream is *shared* from the moment its handle is given away; adopted streams and the default streams are shared
//! from the beginning. The runtime's knowledge of a shared stream is true but may be incomplete: so the end of such a
//! stream is never taken from an earlier record or from a thread's earlier wait. Every wait for it gets its own step,
//! with an event that is recorded for this wait; every query asks the driver about the stream itself. The end of noted
//! memory ([`record_stream`](crate::explicit::record_stream)) is such a step on any stream.
//!
//! # Captures
//! An event that is recorded in a captured stream belongs to the capture, and a stream that waits for it joins the
//! capture. So the runtime records no event of its own there for a call of the safe API. A stream on which memory was
//! noted gets an event before a capture through this library begins. That event covers all work of the stream until the
//! capture has ended, because nothing runs in the stream during the capture. For a shared stream, which other code may
//! capture, the driver is asked before each record and, in case a capture begins meanwhile, after it.

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
    /// Marks the stream as shared: its handle is given away.
    pub(crate) fn share(&self, runtime: &Runtime) {
        self.is_shared.store(true, Ordering::Relaxed);
        runtime.shares_streams.store(true, Ordering::Relaxed);
        runtime.meets_captures.store(true, Ordering::Relaxed);
    }

    /// Refuses to record an event here while the stream is being captured.
    pub(crate) fn refuse_captured(&self, runtime: &Runtime) -> Result<()> {
        let is_ours = self.capture.get().is_some();
        if is_ours || self.is_shared() && runtime.backend.is_captured(self.id) {
            Err(self.captured())
        } else {
            Ok(())
        }
    }

    #[cold]
    fn captured(&self) -> Error {
        Error::Invalid {
            call: "wait",
            why: format!(
                "stream {:?} is being captured, so this call would become part of the capture instead of \
                 running; end the capture first",
                self.name
            ),
        }
    }
}

impl Runtime {
    /// Returns the stream of a mark, if other code may put work into it or capture it.
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

    /// Returns an event after a point that has none: the event of an earlier request, or one that is recorded now,
    /// later than needed and never too early. Repeated requests return the same event: a new one would be complete
    /// later each time.
    ///
    /// # Errors
    /// If the stream is being captured, or any error that the back end returns.
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
        // Another thread may have set an event meanwhile, which serves equally well.
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
        // The event belongs to the device of the stream in which it is recorded, which may not be the caller's device
        // (R43).
        let event = self.event(mark.device, false)?;
        let kind = Kind::Record {
            event: event.id,
            stream: mark.stream,
        };
        let record = |pen: &mut Option<Pen<'_>>| {
            let op = plain(thread, kind, pen, at);
            // SAFETY: the record names no memory; the stream's owner keeps the stream alive, and the event is new.
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
        // Other code can begin a capture without calling this library.
        if core.is_shared() {
            core.refuse_captured(self)?;
        }
        *last = Some(Arc::clone(&recorded));
        Ok(recorded)
    }

    /// Returns the mark with an event, if the stream itself must not be queried because other code may have put more
    /// work into it or may be about to capture it.
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
