//! Allocating and freeing memory: the cache's requests to the back end, and the uses it waits for.

use std::sync::Arc;

use smallvec::SmallVec;

use super::block::{Block, BlockState};
use super::cached::{Carried, Grant, Memories};
use super::runtime::{Runtime, Thread};
use super::telling::Place;
use super::threads::as_thread;
use super::undone::Undone;
use super::uses::Uses;
use crate::alloc::{Granted, Growth, Need, Segment, State, Statistics};
use crate::backend::Reserve;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::StreamId;
use crate::order::Epoch;
use parking_lot::Mutex;

impl Memories {
    /// Allocates memory for an owner that uses it first on `home`; `None` is the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the sizes, or the error of waiting for freed memory.
    pub(crate) fn take(
        &self,
        runtime: &Arc<Runtime>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Box<Block>> {
        runtime.check()?;
        let granted = loop {
            match self.ask(runtime, size_bytes, home, at) {
                Ok(granted) => break granted,
                Err(Need::Segment(growth)) => self.reserve(runtime, growth)?,
                Err(Need::Wait(uses)) => self.wait_for(runtime, &uses, at)?,
                Err(Need::Release(segments)) => self.release(runtime, segments, at)?,
                Err(Need::OutOfMemory(memory)) => return Err(memory.into()),
            }
        };
        let Granted { piece, carried, .. } = granted;
        let uses = if runtime.is_tracking {
            carried.0.carried(size_bytes)
        } else {
            Uses::default()
        };
        let block = Box::new(Block {
            runtime: Arc::clone(runtime),
            memory: self.memory,
            device: self.device,
            address: piece.address,
            size_bytes: piece.bytes,
            home,
            at,
            state: Mutex::new(BlockState::new(uses)),
            grant: Grant::Piece(piece),
        });
        block.tell_alloc();
        Ok(block)
    }

    /// Returns the statistics, after checking which uses are complete by now. Memory counts as in use if the device
    /// cannot be queried.
    pub(crate) fn statistics(&self, runtime: &Arc<Runtime>, at: Place) -> Statistics {
        if !runtime.backend.is_this_process() {
            return Statistics::default();
        }
        as_thread(runtime, |thread| {
            let mut pen = runtime.live.write();
            let mut pending = Pending::new();
            let mut cache = self.cache.lock();
            cache.look(|uses| {
                let state = look(runtime, thread, uses, None, &mut pending, &mut pen, at);
                state == Ok(State::Over)
            });
            cache.statistics()
        })
    }

    /// Returns all unused memory to the machine, once its uses are complete.
    pub(crate) fn empty(&self, runtime: &Arc<Runtime>, at: Place) -> Result<()> {
        let segments = self.cache.lock().empty_cache();
        self.release(runtime, segments, at)
    }

    fn ask(
        &self,
        runtime: &Arc<Runtime>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Granted<Carried>, Need<Carried>> {
        if let Some(granted) = self.cache.lock().alloc_at_once(size_bytes, home) {
            return Ok(granted);
        }
        // A thread has to be registered before it takes the pen.
        if runtime.live.is_on() {
            as_thread(runtime, |thread| {
                self.ask_as(runtime, Some(thread), size_bytes, home, at)
            })
        } else {
            self.ask_as(runtime, None, size_bytes, home, at)
        }
    }

    #[inline(never)]
    fn ask_as(
        &self,
        runtime: &Arc<Runtime>,
        mut caller: Option<&mut Thread>,
        size_bytes: u64,
        home: Option<StreamId>,
        at: Place,
    ) -> Result<Granted<Carried>, Need<Carried>> {
        // Marks that were pending when they were queried: later work on the same stream is pending too.
        let mut pending = Pending::new();
        let mut pen = caller.as_ref().and_then(|_| runtime.live.write());
        let mut cache = self.cache.lock();
        cache.alloc(size_bytes, home, |uses| {
            let mut look =
                |thread: &mut Thread| look(runtime, thread, uses, home, &mut pending, &mut pen, at);
            let state = match &mut caller {
                Some(thread) => look(thread),
                None => as_thread(runtime, look),
            };
            // After an error the uses count as pending: waiting is always safe, and the next use of the device reports
            // the error.
            state.unwrap_or(State::Pending)
        })
    }

    fn reserve(&self, runtime: &Runtime, growth: Growth) -> Result<()> {
        let Growth { at, bytes } = growth;
        let wanted = Reserve {
            at,
            ..Reserve::new(self.memory, self.device, bytes)
        };
        let reserved = runtime.beside_captures(|| runtime.backend.reserve(wanted));
        match (runtime.seen(reserved), at) {
            (Ok(address), _) => {
                let uses = Carried(Uses::before(self.gone.come_again(address, bytes)));
                self.cache.lock().add_used_segment(address, bytes, uses);
            }
            (Err(Error::OutOfMemory(_)), _) => self.cache.lock().segment_refused(bytes),
            (Err(Error::Refused { .. }), Some(at)) => self.cache.lock().cannot_extend(at),
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    fn wait_for(&self, runtime: &Arc<Runtime>, uses: &Carried, at: Place) -> Result<()> {
        let mut marks = uses.0.marks().iter();
        marks.try_for_each(|mark| runtime.synchronize(mark, at))
    }

    fn release(
        &self,
        runtime: &Arc<Runtime>,
        segments: Vec<Segment<Carried>>,
        at: Place,
    ) -> Result<()> {
        if let Err(error) = runtime.refuse_to_give_back() {
            self.kept.lock().extend(segments);
            return Err(error);
        }
        let mut failed = Ok(());
        let kept = std::mem::take(&mut *self.kept.lock());
        let mut rest = Undone::new(&self.kept, kept.into_iter().chain(segments));
        while let Some(segment) = rest.next() {
            let waited = self.wait_for(runtime, &segment.uses, at);
            let Some(segment) = rest.take() else { break };
            match waited {
                Ok(()) => {
                    let Segment {
                        address,
                        bytes,
                        uses,
                    } = segment;
                    if runtime.live.is_on() {
                        self.gone.note(address, bytes, uses.0.into_marks());
                    }
                    // SAFETY: the cache reserved the segment and has given it up, and its uses were waited for.
                    // Without tracking there are none to wait for, and the caller promised this when the device was
                    // opened.
                    unsafe {
                        (runtime.backend).unreserve(self.memory, self.device, address);
                    }
                }
                Err(error) => {
                    self.kept.lock().push(segment);
                    failed = Err(error);
                }
            }
        }
        failed
    }
}

/// Marks that were pending when they were queried.
type Pending = SmallVec<[Epoch; 8]>;

/// Returns the state of a piece's uses for an allocation on `home`. Each query is a call of the driver, so marks that
/// are known to be `pending` are not queried again.
fn look(
    runtime: &Arc<Runtime>,
    thread: &mut Thread,
    uses: &Carried,
    home: Option<StreamId>,
    pending: &mut Pending,
    pen: &mut Option<Pen<'_>>,
    at: Place,
) -> Result<State> {
    let mut state = State::Over;
    for mark in uses.0.marks() {
        let epoch = mark.epoch();
        let is_later = |known: &Epoch| known.chain == epoch.chain && known.tick <= epoch.tick;
        if !pending.iter().any(is_later) {
            if runtime.peek(thread, mark, pen, at)? {
                continue;
            }
            pending.push(epoch);
        }
        if home != Some(mark.stream()) {
            return Ok(State::Pending);
        }
        state = State::Ordered;
    }
    Ok(state)
}
