//! What clones of a stream share, and the streams of a device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::captured::Capturing;
use super::recorded::{OwnEvent, Recorded};
use crate::backend::{Backend, Destroy};
use crate::error::Result;
use crate::op::{DeviceId, EventId, StreamId};
use crate::order::live::{Point, StreamClock};

/// What clones of a stream share, and what stays when they are gone.
pub(crate) struct Core {
    pub id: StreamId,
    pub device: DeviceId,
    pub(super) name: String,
    pub priority: i32,
    pub(super) made: Made,
    /// Whether an event is recorded behind every call that uses memory.
    pub(super) is_marking: bool,
    /// Whether code that is not ours may put work into it: its handle was given away, or is theirs, or
    /// everybody has it.
    pub(super) is_shared: AtomicBool,
    /// Whether memory was noted on it, which somebody may wait for at any time.
    pub(super) is_noted: AtomicBool,
    /// What it takes part in. A stream of the safe API does so only if other code sees to it.
    pub capture: Capturing,
    /// The newest event that was recorded for those who wait for memory that was noted. While it is
    /// locked the stream joins no capture of ours. No other lock is taken meanwhile.
    pub(super) last: Mutex<Option<Arc<Recorded>>>,
    pub state: Mutex<State>,
}

/// What the lock of a stream guards.
pub(crate) struct State {
    pub clock: StreamClock,
    /// Whether the newest mark is the end of the stream: nothing has come behind it.
    pub(super) is_marked: bool,
    /// Marks that were made, the newest last; one that nobody else holds is made anew.
    pub(super) marks: VecDeque<Arc<Recorded>>,
    /// What streams of the explicit style wait for, recorded for each wait; made for the first.
    pub(super) link: Option<OwnEvent>,
}

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

/// The streams of a device that were made so far. The driver's streams are kept: making one takes
/// longer than all that is done here.
#[derive(Default)]
pub(crate) struct Streams {
    pub(super) made: Mutex<Vec<Arc<Core>>>,
}

/// A stream that is gone: a new one may go on counting on its chain, behind its end.
pub(crate) struct Ended {
    pub(super) clock: StreamClock,
    pub end: Arc<Recorded>,
}

impl Made {
    pub(crate) fn adopted(self) -> Option<u64> {
        match self {
            Made::Adopted(handle) => Some(handle),
            Made::Safe { .. } | Made::Explicit => None,
        }
    }
}

impl State {
    /// A mark that nobody waits for any more becomes the end of the stream. Only a few are looked
    /// at: marks die in about the sequence in which they were made.
    #[inline]
    pub(crate) fn renew_mark(&mut self) -> Option<EventId> {
        for _ in 0..self.marks.len().min(4) {
            if self.marks.len() > 1 {
                let oldest = self.marks.pop_front()?;
                self.marks.push_back(oldest);
            }
            let oldest = self.marks.back_mut()?;
            // As long as somebody has it, that is seen without a locked instruction.
            let spare = match Arc::strong_count(oldest) {
                1 => Arc::get_mut(oldest),
                _ => None,
            };
            if let Some(spare) = spare {
                self.clock.point_into(&mut spare.point);
                return Some(spare.event.id);
            }
        }
        None
    }
}

impl Core {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether other code may have put work into it.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Whoever submits by the handle got it from the thread that has set this, or from one that
        // it told.
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Memory is noted on it.
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Relaxed)
    }

    /// Does something by which the stream joins a capture. What waits for memory that was noted here has an
    /// event from before, which `record` records.
    pub(crate) fn join_capture(
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

    /// The end of the stream so far.
    pub(crate) fn end(&self) -> Point {
        self.state.lock().clock.point()
    }
}

impl Streams {
    /// A stream, if it is one of these.
    pub(crate) fn find(&self, id: StreamId) -> Option<Arc<Core>> {
        let made = self.made.lock();
        made.iter().find(|core| core.id == id).cloned()
    }

    /// Gives all of them back: nobody holds any.
    pub(crate) fn close(&self, backend: &dyn Backend) {
        let made = std::mem::take(&mut *self.made.lock());
        for core in made {
            // SAFETY: it was made here, and nobody has a handle.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
    }
}
