//! The one step by which any call enters a stream.
//!
//! Finding the missing waits, submitting, noting the uses and writing the log happen under the locks of the pen (if a
//! sink is attached), the stream and the touched blocks, taken in this order, and the blocks in the order of their
//! addresses. So the log has the driver's order, no use is missed by another thread, and there is no deadlock.
//!
//! Every entry point has the same frame: a lost machine is refused, the calling thread is a [`Caller`],
//! [`Stream::step`] takes the locks, the [`Step`] acts and is [closed](Step::close), and the caller leaves.
//! [`Stream::begin`] and [`Stream::link`] put it around closures. The most frequent calls write it out instead: a
//! closure, or a function for the first two steps, would move a result, which costs up to thirty instructions.
//!
//! [`tracker`](super::super) defines marks, links, points and epochs.

use std::sync::atomic;
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;

use super::super::block::{Block, Touch};
use super::super::mark::{Mark, Unrecorded};
use super::super::recorded::{OwnEvent, Recorded};
use super::super::runtime::Thread;
use super::super::streams::State;
use super::super::telling::{Place, plain, write};
use super::super::threads::Caller;
use super::super::uses::{Conflicts, keep_last};
use super::Stream;
use super::held::Held;
use crate::backend::Payload;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::{Access, Accesses, EventId, Kind, Mode, Op};
use crate::order::Epoch;
use crate::order::live::{Point, StreamClock};
use crate::order::may_block;

/// A call to be put into a stream.
pub(crate) struct Call<'a> {
    pub kind: Kind,
    pub payload: Payload<'a>,
    pub touches: &'a [Touch<'a>],
    /// Further memory that the call reads.
    pub sources: &'a mut [Source<'a>],
    /// A point that the call is ordered after without a wait: for a graph, its previous launch (R49).
    pub behind: Option<&'a Point>,
    /// Whether the caller needs a mark of the call's completion.
    pub is_awaited: bool,
    pub at: Place,
}

/// A call of the explicit style, to be put into a stream without added waits.
pub(crate) struct Bare<'a> {
    pub kind: Kind,
    pub payload: Payload<'a>,
    /// Whether the call runs; otherwise it becomes part of a capture.
    pub runs: bool,
    pub at: Place,
}

/// The first bytes of a block that a call reads. The block has no other reference, so no lock is taken.
pub(crate) struct Source<'a> {
    pub block: &'a mut Block,
    pub end: u64,
}

/// The state of a call while it holds the locks.
pub(super) struct Step<'s> {
    stream: &'s Stream,
    pub thread: &'s mut Thread,
    pen: Option<Pen<'s>>,
    pub state: MutexGuard<'s, State>,
    at: Place,
}

impl Stream {
    /// Puts a call into the stream, ordered after all uses that it conflicts with. Returns the mark of its completion
    /// if [`Call::is_awaited`] is set.
    ///
    /// # Errors
    /// Any error that the back end returns. Then the call is not in the stream, but its waits may be.
    #[track_caller]
    pub(crate) fn issue(&self, mut call: Call<'_>) -> Result<Option<Mark>> {
        let (runtime, at) = (&self.runtime, call.at);
        runtime.check()?;
        let mut caller = Caller::of(runtime);
        let mut step = self.step(caller.thread(), at);
        // Blocks are only used by the tracker and the log.
        let mut held = if runtime.is_tracking || step.pen.is_some() {
            Held::lock(call.touches)
        } else {
            Held::default()
        };
        let mark = step.take(&mut held, &mut call);
        drop(held);
        step.close();
        caller.leave();
        let mark = mark?;
        if runtime.is_synchronous {
            let waited = self.finish_at(at).map_err(Error::behind_submit);
            waited.map_err(|error| runtime.lost_by(error, at))?;
        }
        Ok(mark)
    }

    /// Returns the current end of the stream as a mark.
    #[track_caller]
    pub(crate) fn mark(&self, at: Place) -> Result<Mark> {
        self.begin(at, |step| step.mark())
    }

    /// Records the caller's own event at the end of the stream.
    #[track_caller]
    pub(crate) fn record_as(&self, event: OwnEvent, at: Place) -> Result<Recorded> {
        self.begin(at, |step| {
            step.refuse_captured()?;
            step.record_own(event)
        })
    }

    /// Makes the stream wait for a mark, unless the stream is already known to be ordered after it.
    #[track_caller]
    pub(crate) fn wait_for(&self, mark: &Mark, at: Place) -> Result<()> {
        self.begin(at, |step| step.order_after(mark))
    }

    /// Makes the stream wait for the current end of another stream.
    #[track_caller]
    pub(crate) fn wait_for_end(&self, other: &Stream, at: Place) -> Result<()> {
        self.link(
            other,
            at,
            |step| step.mark_link(),
            |step, event| step.order_after_link(event),
        )
    }

    /// Makes the stream wait for an event that the other stream records.
    #[inline(always)]
    #[track_caller]
    fn link(
        &self,
        other: &Stream,
        at: Place,
        record: impl FnOnce(&mut Step<'_>) -> Result<EventId>,
        wait: impl FnOnce(&mut Step<'_>, EventId) -> Result<()>,
    ) -> Result<()> {
        self.runtime.check()?;
        let mut caller = Caller::of(&self.runtime);
        let event = other.begin_by(caller.thread(), at, record)?;
        self.begin_by(caller.thread(), at, |step| wait(step, event))?;
        caller.leave();
        Ok(())
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.core.state.lock();
        if state.clock.is_worn() {
            state.clock.renew(self.runtime.new_chain());
        }
        state
    }

    /// Puts a call of the explicit style into the stream: no waits are added, and no uses are noted. `accesses` is
    /// called only if a sink is attached. A call that is captured does not run, so no order is derived from it.
    ///
    /// # Errors
    /// Any error that the back end returns. The call is not in the stream then.
    #[track_caller]
    pub(crate) fn issue_bare(
        &self,
        mut call: Bare<'_>,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
    ) -> Result<()> {
        let runtime = &self.runtime;
        if call.runs && may_block(call.kind) && !self.is_captured_by_others() {
            self.issue_unlocked(&mut call, accesses)?;
        } else {
            self.begin(call.at, |step| {
                let op = step.bare(call.kind, accesses);
                let payload = std::mem::replace(&mut call.payload, Payload::None);
                // SAFETY: calls of the explicit style that name memory are `unsafe`, and their caller has promised
                // this.
                if let Err(error) = unsafe { runtime.backend.submit(&op, payload) } {
                    step.state.is_marked = false;
                    step.state.clock.unseen();
                    return runtime.seen(Err(error));
                }
                if call.runs {
                    step.state.is_marked = false;
                    step.state.clock.submitted(&step.thread.clock);
                }
                write(&mut step.pen, &op);
                Ok(())
            })?;
        }
        self.wait_if_synchronous(call.runs, call.at)
    }

    #[inline]
    fn wait_if_synchronous(&self, runs: bool, at: Place) -> Result<()> {
        if runs && self.runtime.is_synchronous {
            self.finish_at(at).map_err(Error::behind_submit)
        } else {
            Ok(())
        }
    }

    /// Submits a call that may block its caller, for instance on a function on the host that waits for other threads,
    /// whose calls need the locks. So the call gets its place in the order first, and is then made without a lock.
    #[cold]
    #[track_caller]
    fn issue_unlocked(
        &self,
        call: &mut Bare<'_>,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
    ) -> Result<()> {
        let runtime = &self.runtime;
        runtime.check()?;
        let mut caller = Caller::of(runtime);
        let mut step = self.step(caller.thread(), call.at);
        let op = step.bare(call.kind, accesses);
        step.state.is_marked = false;
        step.state.clock.submitted(&step.thread.clock);
        write(&mut step.pen, &op);
        drop(step);
        let payload = std::mem::replace(&mut call.payload, Payload::None);
        // SAFETY: as in `issue_bare`.
        let submitted = runtime.seen(unsafe { runtime.backend.submit(&op, payload) });
        // An event that another thread recorded meanwhile may come before the call.
        let mut state = self.lock();
        state.is_marked = false;
        state.clock.unseen();
        drop(state);
        caller.leave();
        runtime.raise();
        submitted
    }

    fn is_captured_by_others(&self) -> bool {
        self.core.is_shared() && self.runtime.backend.is_captured(self.core.id)
    }

    /// Puts a call of the explicit style that touches no memory into the stream, such as a wait for the point
    /// `behind`. `done` gets the stream's clock after the call.
    ///
    /// # Errors
    /// As for [`Stream::issue_bare`].
    #[inline]
    #[track_caller]
    pub(crate) fn link_bare(
        &self,
        kind: Kind,
        runs: bool,
        behind: Option<&Point>,
        at: Place,
        done: impl FnOnce(&StreamClock),
    ) -> Result<()> {
        self.runtime.check()?;
        let mut caller = Caller::of(&self.runtime);
        let mut step = self.step(caller.thread(), at);
        let submitted = step.submit(kind);
        if submitted.is_ok() {
            step.linked(runs, behind);
            done(&step.state.clock);
        }
        step.close();
        caller.leave();
        submitted?;
        self.wait_if_synchronous(runs, at)
    }

    /// Puts a call into the stream by which it joins a capture; `joined` runs directly after it, before anything else
    /// enters the stream. If memory was noted on the stream, waits for that memory get an event from before the call.
    ///
    /// # Errors
    /// As for [`Stream::issue_bare`].
    #[track_caller]
    pub(crate) fn link_into_capture(
        &self,
        kind: Kind,
        at: Place,
        joined: impl FnOnce(),
    ) -> Result<()> {
        self.begin(at, |step| {
            let before = if self.core.is_noted() && self.core.capture.get().is_none() {
                let event = step.new_event()?;
                let before = step.record_own(event)?;
                step.state.is_marked = false;
                Some(Arc::new(before))
            } else {
                None
            };
            self.core.join_capture(before, || {
                step.submit(kind)?;
                joined();
                Ok(())
            })
        })
    }

    /// Makes the stream wait for all work submitted to another stream so far, for a call of the explicit style.
    ///
    /// # Errors
    /// As for [`Stream::issue_bare`].
    #[track_caller]
    pub(crate) fn link_behind(&self, other: &Stream, runs: bool, at: Place) -> Result<()> {
        // An event is recorded even if the end of the other stream has one, because other code may have submitted
        // work after that. If another thread records the event again before the wait for it is placed, the wait
        // covers more than necessary.
        self.link(
            other,
            at,
            |step| step.record_link(),
            |step, event| {
                step.submit_wait(event)?;
                if runs {
                    step.waits_for_link();
                }
                Ok(())
            },
        )?;
        self.wait_if_synchronous(runs, at)
    }

    /// Makes the stream wait for all uses that an access to these bytes would have to be ordered after.
    pub(crate) fn order_after(&self, touch: Touch<'_>, at: Place) -> Result<()> {
        let touches = [touch];
        self.begin(at, |step| {
            step.refuse_captured()?;
            step.wait_for_conflicts(&Held::lock(&touches), &touches, &mut [], None)
        })
    }

    /// Logs, if `is_told` is set, that the calling thread waits for the stream; returns the op and the end of the
    /// stream.
    pub(crate) fn tell_wait(&self, kind: Kind, is_told: bool, at: Place) -> Result<(Op, Point)> {
        self.begin(at, |step| {
            let op = plain(step.thread.id, kind, &mut step.pen, step.at);
            if is_told {
                write(&mut step.pen, &op);
            }
            Ok((op, step.state.clock.point()))
        })
    }

    /// Runs an action under the locks, for a call that touches no memory, as the calling thread.
    // Without inlining, `begin` and `link` would cost some fifty more instructions, in calls of three hundred.
    #[inline(always)]
    #[track_caller]
    pub(super) fn begin<R>(
        &self,
        at: Place,
        act: impl FnOnce(&mut Step<'_>) -> Result<R>,
    ) -> Result<R> {
        self.runtime.check()?;
        let mut caller = Caller::of(&self.runtime);
        let done = self.begin_by(caller.thread(), at, act)?;
        caller.leave();
        Ok(done)
    }

    #[inline(always)]
    #[track_caller]
    fn begin_by<R>(
        &self,
        thread: &mut Thread,
        at: Place,
        act: impl FnOnce(&mut Step<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut step = self.step(thread, at);
        match act(&mut step) {
            Ok(done) => {
                step.close();
                Ok(done)
            }
            // A separate arm, so that the large error type is not moved in the other case.
            Err(error) => {
                step.close();
                Err(error)
            }
        }
    }

    /// Takes the locks. The step has to be [closed](Step::close) when no lock of a block is held.
    #[inline(always)]
    fn step<'s>(&'s self, thread: &'s mut Thread, at: Place) -> Step<'s> {
        Step {
            stream: self,
            thread,
            pen: self.runtime.live.write(),
            state: self.lock(),
            at,
        }
    }
}

impl Step<'_> {
    /// Releases the locks, and raises what the sinks report about the call.
    #[inline]
    #[track_caller]
    fn close(self) {
        let (stream, thread, is_heard) = (self.stream, self.thread.id, self.pen.is_some());
        drop(self);
        if is_heard {
            stream.runtime.live.raise(thread);
        }
    }

    fn take(&mut self, held: &mut Held<'_>, call: &mut Call<'_>) -> Result<Option<Mark>> {
        let runtime = &self.stream.runtime;
        if self.stream.core.is_shared() {
            self.refuse_captured()?;
        }
        if runtime.is_tracking {
            self.wait_for_conflicts(held, call.touches, call.sources, call.behind)?;
        }
        let mut op = plain(self.thread.id, call.kind, &mut self.pen, self.at);
        if let Some(pen) = &mut self.pen {
            for source in call.sources.iter() {
                let buffer = source.block.state.lock().name(source.block, pen);
                op.accesses.push(Access {
                    buffer,
                    start: 0,
                    end: source.end,
                    mode: Mode::Read,
                });
            }
            for (number, touch) in call.touches.iter().enumerate() {
                let state = held.state(number, touch.block);
                let buffer = state.name(touch.block, pen);
                let (start, end, mode) = (touch.start, touch.end, touch.mode);
                op.accesses.push(Access {
                    buffer,
                    start,
                    end,
                    mode,
                });
            }
            // Naming the buffers may add records to the log; the op takes its number after them.
            op.id = pen.next_op();
        }
        let payload = std::mem::replace(&mut call.payload, Payload::None);
        // SAFETY: the payload names the memory of `touches` and `sources`, at the ranges that were borrowed. The call
        // is ordered after all conflicting uses, and is itself noted as a use: the memory gets no other owner before
        // the call is complete (I11, I14). Without tracking the caller promised this when the device was opened.
        let submitted = unsafe { runtime.backend.submit(&op, payload) };
        let submitted = runtime.seen(submitted);
        self.state.is_marked = false;
        match (&submitted, call.behind) {
            (Ok(()), Some(earlier)) => self.state.clock.launched(&self.thread.clock, earlier),
            (Ok(()), None) => _ = self.state.clock.submitted(&self.thread.clock),
            // The call is not in the stream, whose clock does not advance.
            (Err(_), _) => self.state.clock.unseen(),
        }
        if submitted.is_ok() {
            write(&mut self.pen, &op);
        }
        let touches_any = !call.touches.is_empty() || !call.sources.is_empty();
        if !(runtime.is_tracking && touches_any || call.is_awaited) {
            return submitted.map(|()| None);
        }
        // A call that failed is noted as well: it is unknown how much of it the device has seen, and an unnecessary
        // wait is safe.
        if self.stream.core.is_marking || matches!(call.kind, Kind::GraphLaunch { .. }) {
            let _ = self.record();
        }
        let mark = self.end();
        if runtime.is_tracking {
            for source in call.sources.iter_mut() {
                let uses = &mut source.block.state.get_mut().uses;
                uses.note(0..source.end, Mode::Read, mark.clone());
            }
        }
        if runtime.is_tracking
            && let Some((last, others)) = call.touches.split_last()
        {
            let is_in_the_stream = submitted.is_ok();
            for (number, touch) in others.iter().enumerate() {
                held.note(number, touch, mark.clone(), is_in_the_stream);
            }
            // Without a request for the mark, its reference count is not incremented.
            if !call.is_awaited {
                held.note(others.len(), last, mark, is_in_the_stream);
                return submitted.map(|()| None);
            }
            held.note(others.len(), last, mark.clone(), is_in_the_stream);
        }
        submitted.map(|()| Some(mark))
    }

    /// Inserts the waits that are missing, and no others.
    #[inline]
    fn wait_for_conflicts(
        &mut self,
        held: &Held<'_>,
        touches: &[Touch<'_>],
        sources: &mut [Source<'_>],
        behind: Option<&Point>,
    ) -> Result<()> {
        let mut conflicts = Conflicts::new();
        let (clock, thread) = (&self.state.clock, &self.thread.clock);
        let mut found = |mark: &Mark| {
            let epoch = mark.epoch();
            let by_itself = || behind.is_some_and(|earlier| earlier.covers(epoch));
            if !clock.knows(epoch) && !thread.knows(epoch) && !by_itself() {
                conflicts.push(mark.clone());
            }
        };
        for (number, touch) in touches.iter().enumerate() {
            let bytes = touch.start..touch.end;
            let uses = held.uses(number, touch.block);
            uses.conflicts(bytes, touch.mode, &mut found);
        }
        for source in sources {
            let uses = &source.block.state.get_mut().uses;
            uses.conflicts(0..source.end, Mode::Read, &mut found);
        }
        if conflicts.is_empty() {
            return Ok(());
        }
        keep_last(&mut conflicts);
        for mark in &conflicts {
            self.wait_unless_known(mark)?;
        }
        Ok(())
    }

    /// The stream waits even if the mark may be complete already: a wait for a completed mark costs 0.13 µs and delays
    /// nothing, a query that returns `true` costs up to 1.4 µs, and one that returns `false` gains nothing (H200).
    #[inline(never)]
    fn wait_unless_known(&mut self, mark: &Mark) -> Result<()> {
        if self.knows(mark.epoch()) {
            return Ok(());
        }
        let runtime = &self.stream.runtime;
        runtime
            .waits_inserted
            .fetch_add(1, atomic::Ordering::Relaxed);
        self.wait(mark)
    }

    /// Refuses a call of the safe API while other code captures the stream: it would become part of the capture
    /// instead of running.
    #[cold]
    fn refuse_captured(&self) -> Result<()> {
        if self.stream.core.is_shared() {
            self.stream.core.refuse_captured(&self.stream.runtime)
        } else {
            Ok(())
        }
    }

    fn knows(&self, epoch: Epoch) -> bool {
        self.state.clock.knows(epoch) || self.thread.clock.knows(epoch)
    }

    fn wait(&mut self, mark: &Mark) -> Result<()> {
        match mark {
            Mark::Recorded(recorded) => self.wait_event(recorded),
            // An event after all work that was submitted to that stream so far.
            Mark::Stream(mark) => {
                let runtime = &self.stream.runtime;
                let (thread, pen) = (self.thread.id, &mut self.pen);
                let recorded = runtime.event_behind(mark, thread, pen, self.at)?;
                self.wait_event(&recorded)
            }
        }
    }

    fn wait_event(&mut self, recorded: &Recorded) -> Result<()> {
        self.submit_wait(recorded.event.id)?;
        self.state.is_marked = false;
        self.state
            .clock
            .waits_for(&self.thread.clock, &recorded.point);
        Ok(())
    }

    /// Runs a call that touches no memory: the stream is then ordered after all that the thread knows to be complete,
    /// unless the call is refused. If the stream was already ordered after all of that, a refused call counts as an
    /// ordinary step.
    #[inline]
    fn learning(&mut self, call: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (clock, thread) = (&mut self.state.clock, &self.thread.clock);
        let before = (!clock.is_fed_by(thread)).then(|| clock.clone());
        clock.submitted(thread);
        let called = call(self);
        if called.is_err()
            && let Some(before) = before
        {
            self.state.clock = before;
            self.state.clock.unseen();
        }
        called
    }

    /// Returns the current end of the stream, with an event.
    #[inline]
    fn mark(&mut self) -> Result<Mark> {
        self.recorded()?;
        Ok(self.end())
    }

    /// Ensures that the newest mark is the end of the stream.
    #[inline]
    fn recorded(&mut self) -> Result<()> {
        if self.stream.core.is_shared() {
            self.refuse_captured()?;
        } else if self.state.is_marked {
            return Ok(());
        }
        self.learning(Step::record)
    }

    /// Makes the stream wait for a mark, unless the stream is known to be ordered after it.
    #[inline]
    fn order_after(&mut self, mark: &Mark) -> Result<()> {
        if self.knows(mark.epoch()) {
            return Ok(());
        }
        if self.stream.core.is_shared() {
            self.refuse_captured()?;
        }
        self.wait(mark)
    }

    /// Updates the state for a call of the explicit style that touches no memory, such as a wait for the point
    /// `behind`.
    #[inline(always)]
    fn linked(&mut self, runs: bool, behind: Option<&Point>) {
        if runs {
            self.state.is_marked = false;
            match behind {
                Some(point) => self.state.clock.waits_for(&self.thread.clock, point),
                None => _ = self.state.clock.submitted(&self.thread.clock),
            }
        }
    }

    /// Records an event at the end of the stream.
    #[inline]
    fn record(&mut self) -> Result<()> {
        let event = match self.state.renew_mark() {
            Some(event) => event,
            None => self.new_mark()?,
        };
        self.submit_record(event)?;
        self.state.is_marked = true;
        Ok(())
    }

    /// Records an event at the end of the stream; the thread keeps its point ([`Thread::link`]).
    #[inline]
    fn record_link(&mut self) -> Result<EventId> {
        let event = match &self.state.link {
            Some(event) => event.id,
            None => self.new_link()?,
        };
        self.state.is_marked = false;
        self.learning(|step| step.submit_record(event))?;
        self.state.clock.point_into(&mut self.thread.link);
        Ok(event)
    }

    /// Like [`Step::record_link`], but reuses an event at the end of the stream if there is one. The stream keeps
    /// that event: if another thread records it again before the wait for it is placed, the wait covers more than
    /// necessary.
    #[inline]
    fn mark_link(&mut self) -> Result<EventId> {
        self.recorded()?;
        let Some(mark) = self.state.marks.back() else {
            unreachable!("an event was just recorded")
        };
        self.thread.link.clone_from(&mark.point);
        Ok(mark.event.id)
    }

    /// Makes the stream wait for the thread's link, unless the stream is known to be ordered after it.
    #[inline]
    fn order_after_link(&mut self, event: EventId) -> Result<()> {
        if self.knows(self.thread.link.epoch()) {
            return Ok(());
        }
        if self.stream.core.is_shared() {
            self.refuse_captured()?;
        }
        self.submit_wait(event)?;
        self.waits_for_link();
        Ok(())
    }

    #[inline]
    fn waits_for_link(&mut self) {
        self.state.is_marked = false;
        let Thread { clock, link, .. } = &*self.thread;
        self.state.clock.waits_for(clock, link);
    }

    /// Records an event that does not belong to the stream, at its end.
    fn record_own(&mut self, event: OwnEvent) -> Result<Recorded> {
        self.learning(|step| step.submit_record(event.id))?;
        Ok(Recorded {
            point: self.state.clock.point(),
            stream: self.stream.core.id,
            event,
        })
    }

    fn new_event(&self) -> Result<OwnEvent> {
        self.stream.runtime.event(self.stream.core.device, false)
    }

    #[cold]
    fn new_link(&mut self) -> Result<EventId> {
        let event = self.new_event()?;
        let id = event.id;
        self.state.link = Some(event);
        Ok(id)
    }

    #[cold]
    fn new_mark(&mut self) -> Result<EventId> {
        let event = self.new_event()?;
        let id = event.id;
        let mark = Recorded {
            point: self.state.clock.point(),
            stream: self.stream.core.id,
            event,
        };
        self.state.marks.push_back(Arc::new(mark));
        Ok(id)
    }

    /// Returns the end of the stream, whether an event was recorded there or not.
    #[inline]
    fn end(&self) -> Mark {
        let unrecorded = || {
            Mark::Stream(Arc::new(Unrecorded {
                point: self.state.clock.point(),
                stream: self.stream.core.id,
                device: self.stream.core.device,
                event: OnceLock::new(),
                core: None,
            }))
        };
        self.state.end().unwrap_or_else(unrecorded)
    }

    /// Returns the op that the log observes for a call of the explicit style.
    fn bare(&mut self, kind: Kind, accesses: impl FnOnce(&mut Pen<'_>) -> Accesses) -> Op {
        let mut op = plain(self.thread.id, kind, &mut self.pen, self.at);
        if let Some(pen) = &mut self.pen {
            op.accesses = accesses(pen);
            // Naming the buffers may add records to the log; the op takes its number after them.
            op.id = pen.next_op();
        }
        op
    }

    #[inline]
    pub(super) fn submit_wait(&mut self, event: EventId) -> Result<()> {
        let stream = self.stream.core.id;
        self.submit(Kind::Wait { stream, event })
    }

    #[inline]
    fn submit_record(&mut self, event: EventId) -> Result<()> {
        let stream = self.stream.core.id;
        self.submit(Kind::Record { event, stream })
    }

    /// Submits a call that touches no memory, and logs it.
    #[inline]
    pub(super) fn submit(&mut self, kind: Kind) -> Result<()> {
        let runtime = &self.stream.runtime;
        let op = plain(self.thread.id, kind, &mut self.pen, self.at);
        // SAFETY: the call names no memory; its stream and its event exist.
        let submitted = unsafe { runtime.backend.submit(&op, Payload::None) };
        runtime.seen(submitted)?;
        write(&mut self.pen, &op);
        Ok(())
    }
}
