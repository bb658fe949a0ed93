//! The one step by which anything gets into a stream.
//!
//! Finding the missing waits, submitting, noting the uses and writing the log happen under the
//! locks of the pen (if anybody listens), the stream and the touched blocks, taken in this order
//! and the blocks by their address. So the log has the driver's sequence, no use is missed by
//! another thread, and no two threads wait for each other.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::{State, Stream};
use crate::backend::Payload;
use crate::buffer::block::{Block, BlockState};
use crate::buffer::uses::{Conflicts, keep_last};
use crate::device::{Place, Thread, as_thread, plain, write};
use crate::error::{Error, Result};
use crate::event::{Mark, OwnEvent, Recorded, Unrecorded};
use crate::log::Pen;
use crate::op::{Access, Accesses, EventId, Kind, Mode, Op};
use crate::order::live::Point;

/// Something to be put into a stream.
pub(crate) struct Call<'a> {
    pub kind: Kind,
    pub payload: Payload<'a>,
    pub touches: &'a [Touch<'a>],
    /// A point behind which the call stands by itself: of a graph, its last launch (R49).
    pub behind: Option<&'a Point>,
    /// Whether the caller wants to know when it is over.
    pub is_awaited: bool,
    pub at: Place,
}

/// Something to be put into a stream as it is.
pub(crate) struct Bare<'a> {
    pub kind: Kind,
    pub payload: Payload<'a>,
    /// Whether it runs; if not, it becomes part of a capture.
    pub runs: bool,
    /// The point that it makes the stream wait for.
    pub behind: Option<&'a Point>,
    pub at: Place,
}

/// Bytes of a block that a call reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Touch<'a> {
    pub block: &'a Block,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
}

/// The state of every touched block, sorted by where the block lies.
type Held<'a> = SmallVec<[(*const Block, MutexGuard<'a, BlockState>); 4]>;

/// What a call needs all the way through.
struct Step<'s, 'c> {
    stream: &'s Stream,
    thread: &'s mut Thread,
    pen: Option<Pen<'s>>,
    state: MutexGuard<'s, State>,
    held: Held<'c>,
    at: Place,
}

impl Stream {
    /// Puts a call into the stream, behind all that it has to stand behind. The mark says where it
    /// is over, for those who ask ([`Call::is_awaited`]).
    ///
    /// # Errors
    /// What the back end answers. The call is not in the stream then; waits for it may be.
    #[track_caller]
    pub(crate) fn issue(&self, mut call: Call<'_>) -> Result<Option<Mark>> {
        let runtime = &self.runtime;
        runtime.check()?;
        let at = call.at;
        let mut is_heard = false;
        let mark = as_thread(runtime, |thread| {
            let pen = runtime.live.write();
            is_heard = pen.is_some();
            let state = self.lock();
            // Blocks are only looked at by the tracker and named by the log.
            let held = match runtime.is_tracking || pen.is_some() {
                true => lock_all(call.touches),
                false => Held::new(),
            };
            let step = Step {
                stream: self,
                thread,
                pen,
                state,
                held,
                at,
            };
            step.take(&mut call)
        });
        if is_heard {
            runtime.raise();
        }
        let mark = mark?;
        if runtime.is_synchronous {
            (self.finish_at(at)).map_err(|error| runtime.lost_by(error, at))?;
        }
        Ok(mark)
    }

    /// The end of the stream so far, as a mark.
    #[track_caller]
    pub(crate) fn mark(&self, at: Place) -> Result<Mark> {
        self.begin(at, |mut step| {
            if let Some(end) = step.state.end() {
                return Ok(end);
            }
            step.learning(Step::record)?;
            Ok(step.end())
        })
    }

    /// Records an event of one's own at the end of the stream.
    #[track_caller]
    pub(crate) fn record_as(&self, event: OwnEvent, kind: Kind, at: Place) -> Result<Recorded> {
        self.begin(at, |mut step| {
            step.learning(|step| step.submit(kind))?;
            Ok(Recorded {
                point: step.state.clock.point(),
                stream: self.core.id,
                event,
            })
        })
    }

    /// Makes the stream wait for a mark, unless it is known to stand behind it already.
    #[track_caller]
    pub(crate) fn wait_for(&self, mark: &Mark, at: Place) -> Result<()> {
        self.begin(at, |mut step| match step.knows(mark) {
            true => Ok(()),
            false => step.wait(mark),
        })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.core.state.lock();
        if state.clock.is_worn() {
            state.clock.renew(self.runtime.new_chain());
        }
        state
    }

    /// Puts a call of the explicit style into the stream: it waits for nothing by itself, and nothing
    /// is noted. `accesses` is asked only if somebody listens. A call that is captured does not run, so
    /// nothing is learned from it. Gives the end of the stream.
    ///
    /// # Errors
    /// What the back end answers. The call is not in the stream then.
    #[track_caller]
    pub(crate) fn issue_bare(
        &self,
        call: Bare<'_>,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
    ) -> Result<Point> {
        let point = self.begin(call.at, |mut step| {
            let mut op = plain(step.thread.id, call.kind, &mut step.pen, step.at);
            if let Some(pen) = &mut step.pen {
                op.accesses = accesses(pen);
                op.id = pen.next_op();
            }
            let runtime = &self.runtime;
            runtime.seen(runtime.backend.submit(&op, call.payload))?;
            if call.runs {
                step.state.is_marked = false;
                match call.behind {
                    Some(point) => step.state.clock.waits_for(&step.thread.clock, point),
                    None => _ = step.state.clock.submitted(&step.thread.clock),
                }
            }
            write(&mut step.pen, op);
            Ok(step.state.clock.point())
        })?;
        if self.runtime.is_synchronous && call.runs {
            self.finish_at(call.at)?;
        }
        Ok(point)
    }

    /// Makes the stream wait for what a use of these bytes would have to stand behind.
    pub(crate) fn stand_behind(&self, touch: Touch<'_>, at: Place) -> Result<()> {
        self.runtime.check()?;
        let done = as_thread(&self.runtime, |thread| {
            let mut step = Step {
                stream: self,
                thread,
                pen: self.runtime.live.write(),
                state: self.lock(),
                held: lock_all(&[touch]),
                at,
            };
            step.wait_for_conflicts(&[touch], None)
        });
        self.runtime.raise();
        done
    }

    /// Tells the log, unless it is not to be told, that the calling thread waits for the stream, and
    /// gives the call and the end of the stream.
    pub(crate) fn tell_wait(&self, kind: Kind, is_told: bool, at: Place) -> Result<(Op, Point)> {
        self.begin(at, |mut step| {
            let op = plain(step.thread.id, kind, &mut step.pen, step.at);
            if is_told {
                write(&mut step.pen, op.clone());
            }
            Ok((op, step.state.clock.point()))
        })
    }

    /// Takes the locks for a call that touches no memory.
    #[track_caller]
    fn begin<R>(&self, at: Place, act: impl FnOnce(Step<'_, '_>) -> Result<R>) -> Result<R> {
        self.runtime.check()?;
        let mut is_heard = false;
        let done = as_thread(&self.runtime, |thread| {
            let pen = self.runtime.live.write();
            is_heard = pen.is_some();
            act(Step {
                stream: self,
                thread,
                pen,
                state: self.lock(),
                held: Held::new(),
                at,
            })
        });
        if is_heard {
            self.runtime.raise();
        }
        done
    }
}

impl<'c> Step<'_, 'c> {
    fn take(mut self, call: &mut Call<'c>) -> Result<Option<Mark>> {
        let runtime = &self.stream.runtime;
        if runtime.is_tracking {
            self.wait_for_conflicts(call.touches, call.behind)?;
        }
        let mut op = plain(self.thread.id, call.kind, &mut self.pen, self.at);
        if let Some(pen) = &mut self.pen {
            for touch in call.touches {
                let state = find(&mut self.held, touch.block);
                let buffer = state.name(touch.block, pen);
                let (start, end, mode) = (touch.start, touch.end, touch.mode);
                op.accesses.push(Access {
                    buffer,
                    start,
                    end,
                    mode,
                });
            }
            // Names are records of their own; the number is taken behind them.
            op.id = pen.next_op();
        }
        let op_kind = call.kind;
        let payload = std::mem::replace(&mut call.payload, Payload::None);
        let submitted = runtime.seen(runtime.backend.submit(&op, payload));
        self.state.is_marked = false;
        match (&submitted, call.behind) {
            (Ok(()), Some(earlier)) => self.state.clock.launched(&self.thread.clock, earlier),
            (Ok(()), None) => _ = self.state.clock.submitted(&self.thread.clock),
            // It is not in the stream, which learns nothing from it.
            (Err(_), _) => self.state.clock.refused(),
        }
        if submitted.is_ok() {
            write(&mut self.pen, op);
        }
        if !(runtime.is_tracking && !call.touches.is_empty() || call.is_awaited) {
            return submitted.map(|()| None);
        }
        // Also a call that failed is noted: nobody can tell how much of it the device has seen, and
        // waiting for nothing is safe.
        if self.stream.core.is_marking || matches!(op_kind, Kind::GraphLaunch { .. }) {
            let _ = self.record();
        }
        let mark = self.end();
        if runtime.is_tracking
            && let Some((last, others)) = call.touches.split_last()
        {
            for touch in others {
                self.note(touch, mark.clone(), submitted.is_ok());
            }
            // One count less to keep where nobody asked for the mark.
            if !call.is_awaited {
                self.note(last, mark, submitted.is_ok());
                return submitted.map(|()| None);
            }
            self.note(last, mark.clone(), submitted.is_ok());
        }
        submitted.map(|()| Some(mark))
    }

    #[inline]
    fn note(&mut self, touch: &Touch<'c>, mark: Mark, is_in_the_stream: bool) {
        let uses = &mut find(&mut self.held, touch.block).uses;
        let bytes = touch.start..touch.end;
        match touch.mode {
            // It need not stand behind what only its thread knows to be over, nor by itself behind
            // an earlier launch.
            Mode::Write if !is_in_the_stream => uses.note_beside(bytes, &mark),
            mode => uses.note(bytes, mode, mark),
        }
    }

    /// Inserts the waits that are missing, and no others.
    #[inline]
    fn wait_for_conflicts(&mut self, touches: &[Touch<'c>], behind: Option<&Point>) -> Result<()> {
        let mut conflicts = Conflicts::new();
        for touch in touches {
            let state = &self.held[place(&self.held, touch.block)].1;
            let (clock, thread) = (&self.state.clock, &self.thread.clock);
            let is_known = |mark: &Mark| {
                let epoch = mark.epoch();
                let by_itself = behind.is_some_and(|earlier| earlier.covers(epoch));
                clock.knows(epoch) || thread.knows(epoch) || by_itself
            };
            let bytes = touch.start..touch.end;
            state
                .uses
                .conflicts(bytes, touch.mode, is_known, &mut conflicts);
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

    /// Without asking whether it is over: a wait for what is over costs 0.13 µs and holds nothing up,
    /// a question that is answered "yes" up to 1.4 µs, and one that is answered "no" gains nothing (H200).
    #[inline(never)]
    fn wait_unless_known(&mut self, mark: &Mark) -> Result<()> {
        if self.knows(mark) {
            return Ok(());
        }
        let runtime = &self.stream.runtime;
        runtime
            .waits_inserted
            .fetch_add(1, atomic::Ordering::Relaxed);
        self.wait(mark)
    }

    fn knows(&self, mark: &Mark) -> bool {
        let epoch = mark.epoch();
        self.state.clock.knows(epoch) || self.thread.clock.knows(epoch)
    }

    fn wait(&mut self, mark: &Mark) -> Result<()> {
        match mark {
            Mark::Recorded(recorded) => self.wait_event(recorded),
            // An event behind all that the stream has been given by now.
            Mark::Stream(at) => {
                let runtime = &self.stream.runtime;
                // Of the device of the stream in which it is recorded, which may be another (R43).
                let event = runtime.event(at.device, false, &mut self.pen)?;
                let kind = Kind::Record {
                    event: event.id,
                    stream: at.stream,
                };
                self.submit(kind)?;
                let recorded = Recorded {
                    point: at.point.clone(),
                    stream: at.stream,
                    event,
                };
                self.wait_event(&recorded)
            }
        }
    }

    fn wait_event(&mut self, recorded: &Recorded) -> Result<()> {
        self.submit(Kind::Wait {
            stream: self.stream.core.id,
            event: recorded.event.id,
        })?;
        self.state.is_marked = false;
        self.state
            .clock
            .waits_for(&self.thread.clock, &recorded.point);
        Ok(())
    }

    /// A call that touches no memory: the stream stands behind all that the thread knows to be over,
    /// unless the call is refused.
    fn learning(&mut self, call: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = self.state.clock.clone();
        self.state.clock.submitted(&self.thread.clock);
        let called = call(self);
        if called.is_err() {
            self.state.clock = before;
            self.state.clock.refused();
        }
        called
    }

    /// Records an event at the end of the stream.
    #[inline]
    fn record(&mut self) -> Result<()> {
        let event = match self.state.renew_mark() {
            Some(event) => event,
            None => self.new_mark()?,
        };
        self.submit(Kind::Record {
            event,
            stream: self.stream.core.id,
        })?;
        self.state.is_marked = true;
        Ok(())
    }

    #[cold]
    fn new_mark(&mut self) -> Result<EventId> {
        let device = self.stream.core.device;
        let runtime = &self.stream.runtime;
        let event = runtime.event(device, false, &mut self.pen)?;
        let id = event.id;
        let mark = Recorded {
            point: self.state.clock.point(),
            stream: self.stream.core.id,
            event,
        };
        self.state.marks.push_back(Arc::new(mark));
        Ok(id)
    }

    /// The end of the stream, whether an event was recorded there or not.
    #[inline]
    fn end(&self) -> Mark {
        let unrecorded = || {
            Mark::Stream(Arc::new(Unrecorded {
                point: self.state.clock.point(),
                stream: self.stream.core.id,
                device: self.stream.core.device,
            }))
        };
        self.state.end().unwrap_or_else(unrecorded)
    }

    /// Submits a call that touches no memory, and tells the log.
    #[inline]
    fn submit(&mut self, kind: Kind) -> Result<()> {
        let runtime = &self.stream.runtime;
        let op = plain(self.thread.id, kind, &mut self.pen, self.at);
        runtime.seen(runtime.backend.submit(&op, Payload::None))?;
        write(&mut self.pen, op);
        Ok(())
    }
}

/// Locks every touched block once. Nearly every call touches one or two.
#[inline]
fn lock_all<'a>(touches: &[Touch<'a>]) -> Held<'a> {
    let mut held = Held::new();
    let mut lock = |block: &'a Block| held.push((std::ptr::from_ref(block), block.state.lock()));
    match touches {
        [] => {}
        [only] => lock(only.block),
        [a, b] => {
            let (a, b) = (a.block, b.block);
            match std::ptr::from_ref(a).cmp(&std::ptr::from_ref(b)) {
                Ordering::Equal => lock(a),
                Ordering::Less => (lock(a), lock(b)).0,
                Ordering::Greater => (lock(b), lock(a)).0,
            }
        }
        more => sorted(more).into_iter().for_each(lock),
    }
    held
}

#[inline(never)]
fn sorted<'a>(touches: &[Touch<'a>]) -> SmallVec<[&'a Block; 8]> {
    let mut blocks: SmallVec<[&'a Block; 8]> = touches.iter().map(|touch| touch.block).collect();
    blocks.sort_unstable_by_key(|block| std::ptr::from_ref(*block));
    blocks.dedup_by_key(|block| std::ptr::from_ref(*block));
    blocks
}

#[inline]
fn find<'h>(held: &'h mut Held<'_>, block: &Block) -> &'h mut BlockState {
    let at = place(held, block);
    &mut held[at].1
}

/// Where the state of a block is, among those that are held. A graph may touch many.
#[inline]
fn place(held: &Held<'_>, block: &Block) -> usize {
    if held.len() <= 2 {
        return usize::from(!std::ptr::eq(held[0].0, block));
    }
    let at = held.binary_search_by_key(&std::ptr::from_ref(block), |&(held, _)| held);
    at.expect("every touched block was locked")
}

/// Whether a call may name all these blocks: they have to belong to the stream's machine.
#[inline]
pub(crate) fn belong(stream: &Stream, call: &'static str, touches: &[Touch<'_>]) -> Result<()> {
    let foreign = |touch: &Touch<'_>| !Arc::ptr_eq(&touch.block.runtime, &stream.runtime);
    if touches.iter().any(foreign) {
        return Err(Error::Invalid {
            call,
            why:
                "the buffer belongs to another machine than the stream; open both devices together \
                  with `Device::open_all`"
                    .into(),
        });
    }
    Ok(())
}
