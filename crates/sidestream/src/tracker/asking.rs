//! The host's queries of work, and its waits for work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::elsewhere::is_kernel;
use super::mark::{Mark, Unrecorded};
use super::runtime::{Runtime, Thread};
use super::telling::{Place, plain, write};
use super::threads::as_thread;
use crate::error::Result;
use crate::log::Pen;
use crate::op::{Accesses, EventId, Kind, Op, OpId, StreamId, ThreadId};
use crate::order::live::Point;

/// The time after which a wait reports the work that it is waiting for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Runtime {
    /// Ends a public call, when no lock is held: panics if a sink has raised an alarm about the call.
    #[inline]
    #[track_caller]
    pub(crate) fn raise(self: &Arc<Self>) {
        if self.live.is_on() && self.backend.is_this_process() {
            let thread = as_thread(self, |thread| thread.id);
            self.live.raise(thread);
        }
    }

    /// Returns whether a mark is complete; if it is, the calling thread is ordered after it.
    pub(crate) fn query(self: &Arc<Self>, mark: &Mark, at: Place) -> Result<bool> {
        if is_kernel() || !self.backend.is_this_process() {
            self.refuse()?;
        }
        let done = as_thread(self, |thread| self.ask(thread, mark, at));
        self.raise();
        done
    }

    /// Like [`Runtime::query`], without blocking, for callers that hold locks.
    pub(crate) fn peek(
        self: &Arc<Self>,
        thread: &mut Thread,
        mark: &Mark,
        pen: &mut Option<Pen<'_>>,
        at: Place,
    ) -> Result<bool> {
        if thread.clock.knows(mark.epoch()) {
            return Ok(true);
        }
        let event = match mark {
            Mark::Recorded(_) => None,
            Mark::Stream(end) => self.event_of_others(end, thread.id, pen, at)?,
        };
        let mark = event.as_ref().unwrap_or(mark);
        let op = plain(thread.id, mark.asked(false), pen, at);
        let done = self.seen(self.beside_captures(|| self.backend.peek(&op)))?;
        if done {
            thread.clock.saw(mark.point());
            write(
                pen,
                &Op {
                    kind: mark.asked(true),
                    ..op
                },
            );
        }
        Ok(done)
    }

    fn ask(&self, thread: &mut Thread, mark: &Mark, at: Place) -> Result<bool> {
        if thread.clock.knows(mark.epoch()) {
            return Ok(true);
        }
        self.check_lost()?;
        let event = self.answerable(mark, thread.id, at)?;
        let mark = event.as_ref().unwrap_or(mark);
        let mut op = plain(thread.id, mark.asked(false), &mut None, at);
        op.id = self.live.nameless();
        let done = self.seen(self.beside_captures(|| self.backend.query(&op)))?;
        Ok(done && self.learned(thread, mark.point(), mark.asked(true), op.id, at)?)
    }

    /// Returns the mark with an event, if the log observes the answer, or if others may have put more work into the
    /// stream: a query of the stream itself would also cover that work.
    #[inline]
    fn answerable(&self, mark: &Mark, thread: ThreadId, at: Place) -> Result<Option<Mark>> {
        match mark {
            Mark::Recorded(_) => Ok(None),
            Mark::Stream(end) => self.answerable_end(end, thread, at),
        }
    }

    #[inline(never)]
    fn answerable_end(
        &self,
        end: &Unrecorded,
        thread: ThreadId,
        at: Place,
    ) -> Result<Option<Mark>> {
        let mut pen = self.live.write();
        match pen {
            None => self.event_of_others(end, thread, &mut pen, at),
            Some(_) => {
                let recorded = self.event_behind(end, thread, &mut pen, at)?;
                Ok(Some(Mark::Recorded(recorded)))
            }
        }
    }

    /// Waits without a time limit.
    pub(crate) fn synchronize(self: &Arc<Self>, mark: &Mark, at: Place) -> Result<()> {
        if self.synchronize_for(mark, PATIENCE, at)? {
            Ok(())
        } else {
            self.wait_on(mark, at)
        }
    }

    /// Continues a wait that takes long. A simulated device waits in virtual time, and hours of it may pass in a
    /// moment; so real time is measured here, where that costs nothing.
    #[cold]
    fn wait_on(self: &Arc<Self>, mark: &Mark, at: Place) -> Result<()> {
        let mut told = Instant::now();
        let mut waited = Duration::ZERO;
        while !self.synchronize_for(mark, PATIENCE, at)? {
            if told.elapsed() >= PATIENCE {
                waited += told.elapsed();
                told = Instant::now();
                let stream = self.stream_name(mark.stream());
                self.tell_of_wait(at, waited, &format!("for work on stream {stream:?}"));
            }
        }
        Ok(())
    }

    fn tell_of_wait(&self, at: Place, waited: Duration, waits: &str) {
        let waited = waited.as_secs();
        (self.notice)(&format!(
            "sidestream: {at} has waited more than {waited} s {waits}"
        ));
    }

    /// Returns the name of a stream for a notice.
    fn stream_name(&self, id: StreamId) -> String {
        let mut devices = self.devices.iter();
        let core = devices.find_map(|device| device.streams.find(id));
        core.map_or_else(|| format!("{}", id.0), |core| core.name().to_owned())
    }

    /// Waits no longer than `at_most`; returns false if that time passes first.
    pub(crate) fn synchronize_for(
        self: &Arc<Self>,
        mark: &Mark,
        at_most: Duration,
        at: Place,
    ) -> Result<bool> {
        if is_kernel() || !self.backend.is_this_process() {
            self.refuse()?;
        }
        let done = as_thread(self, |thread| {
            if thread.clock.knows(mark.epoch()) {
                return Ok(true);
            }
            self.check_lost()?;
            let event = self.answerable(mark, thread.id, at)?;
            let mark = event.as_ref().unwrap_or(mark);
            let mut op = plain(thread.id, mark.awaited(), &mut None, at);
            op.id = self.live.nameless();
            let done = self.seen(self.beside_captures(|| self.backend.wait(&op, at_most)))?;
            if done && !self.learned(thread, mark.point(), op.kind, op.id, at)? {
                // The sink was attached after the call began, and has not observed what the call waited for.
                thread.clock.saw(mark.point());
            }
            Ok(done)
        });
        #[cfg(feature = "observe")]
        self.tell_times();
        self.raise();
        done
    }

    pub(crate) fn elapsed_ns(
        self: &Arc<Self>,
        from: EventId,
        to: EventId,
        at: Place,
    ) -> Result<f64> {
        let ns = self.seen(self.backend.elapsed_ns(from, to))?;
        as_thread(self, |thread| {
            let mut pen = self.live.write();
            let op = plain(thread.id, Kind::Elapsed { from, to }, &mut pen, at);
            write(&mut pen, &op);
        });
        Ok(ns)
    }

    /// Passes the times that the device has recorded to the sinks that want them.
    #[cfg(feature = "observe")]
    pub(crate) fn tell_times(&self) {
        if self.live.wants_times() {
            let mut times = Vec::new();
            self.backend.take_times(&mut times);
            self.live.done(&times);
        }
    }

    /// Performs the wait of a call of the explicit style, without a time limit. The log has already observed the call:
    /// the work that it waits for is determined when the call is made.
    pub(crate) fn finish(&self, op: &Op, at: Place) -> Result<()> {
        let began = Instant::now();
        if self.seen(self.backend.wait(op, PATIENCE))? {
            return Ok(());
        }
        if began.elapsed() >= PATIENCE {
            self.tell_of_wait(at, PATIENCE, &format!("in {:?}", op.kind));
        }
        self.seen(self.backend.wait(op, Duration::MAX)).map(|_| ())
    }

    /// Logs a call that involves only the host.
    pub(crate) fn tell(
        self: &Arc<Self>,
        kind: Kind,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
        at: Place,
    ) {
        self.tell_or_drop(kind, accesses, at, false);
    }

    /// Like [`Runtime::tell`], for what may be the drop of memory that was allocated at `at`.
    pub(crate) fn tell_or_drop(
        self: &Arc<Self>,
        kind: Kind,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
        at: Place,
        is_drop: bool,
    ) {
        if !self.live.is_on() || !self.backend.is_this_process() {
            return;
        }
        as_thread(self, |thread| {
            let Some(mut pen) = self.live.write() else {
                return;
            };
            let op = Op {
                site: pen.site_or_drop(at, is_drop),
                accesses: accesses(&mut pen),
                id: pen.next_op(),
                thread: thread.id,
                kind,
            };
            pen.op(&op);
        });
    }

    /// Orders the thread after a point, and logs the call that shows it. Returns false if it cannot be logged:
    /// another thread has put work into the stream since the answer, and the log would show that work as complete,
    /// too. So the stream is asked once more while no thread can submit to it.
    pub(crate) fn learned(
        &self,
        thread: &mut Thread,
        point: &Point,
        by: Kind,
        called: OpId,
        at: Place,
    ) -> Result<bool> {
        let mut pen = self.live.write();
        let op = plain(thread.id, by, &mut pen, at);
        if let (Some(_), Kind::QueryStream { stream, .. } | Kind::SyncStream { stream }) =
            (&pen, by)
        {
            let kind = Kind::QueryStream {
                stream,
                done: false,
            };
            let asked = Op { kind, ..op.clone() };
            if !self.seen(self.beside_captures(|| self.backend.peek(&asked)))? {
                return Ok(false);
            }
        }
        thread.clock.saw(point);
        if let Some(pen) = &mut pen {
            pen.is_called(called, op.id);
        }
        write(&mut pen, &op);
        Ok(true)
    }
}
