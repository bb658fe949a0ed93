//! State that the clones of a stream share, and the streams of a device.

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

/// State that the clones of a stream share, and that remains when they are dropped.
pub(crate) struct Core {
    pub id: StreamId,
    pub device: DeviceId,
    pub(super) name: String,
    pub priority: i32,
    pub(super) made: Made,
    /// Whether an event is recorded after every call that uses memory.
    pub(super) is_marking: bool,
    /// Whether other code may put work into the stream: its handle was given away, or it is an adopted or a default
    /// stream.
    pub(super) is_shared: AtomicBool,
    /// Whether memory was noted on the stream, so that another owner may wait for it at any time.
    pub(super) is_noted: AtomicBool,
    /// The capture that the stream takes part in. A stream of the safe API does so only if other code captures it.
    pub capture: Capturing,
    /// The newest event that was recorded for waits for noted memory. While it is locked the stream joins no capture
    /// through this library, and no other lock is taken.
    pub(super) last: Mutex<Option<Arc<Recorded>>>,
    pub state: Mutex<State>,
}

/// The state that a stream's lock guards.
pub(crate) struct State {
    pub clock: StreamClock,
    /// Whether the newest mark is the end of the stream: no work was submitted after it.
    pub(super) is_marked: bool,
    /// Marks made so far, the newest last; a mark without other references is reused.
    pub(super) marks: VecDeque<Arc<Recorded>>,
    /// The event for waits of explicit streams, recorded for each wait; created for the first.
    pub(super) link: Option<OwnEvent>,
}

/// The origin of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// Made by the safe API, which keeps it as long as the machine exists.
    Safe {
        /// Whether an event is recorded after every call that uses memory.
        is_marking: bool,
    },
    /// Made by the explicit style.
    Explicit,
    /// Made by another library, with its driver handle.
    Adopted(u64),
}

/// The streams made on a device so far. The driver handle of a dropped stream is kept for reuse, since creating one takes
/// longer than everything else that creating a stream does.
#[derive(Default)]
pub(crate) struct Streams {
    pub(super) made: Mutex<Vec<Arc<Core>>>,
}

/// A destroyed stream: a new one may continue its chain, after its end.
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
    /// Reuses a mark without other references as the new end of the stream. Only a few marks are checked, the oldest
    /// first: marks are dropped in about the order in which they were made.
    #[inline]
    pub(crate) fn renew_mark(&mut self) -> Option<EventId> {
        for _ in 0..self.marks.len().min(4) {
            if self.marks.len() > 1 {
                let oldest = self.marks.pop_front()?;
                self.marks.push_back(oldest);
            }
            let oldest = self.marks.back_mut()?;
            // `strong_count` shows other references to the mark without an atomic read-modify-write.
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

    /// Whether other code may have put work into the stream.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed is enough: a thread that submits by the handle got it, directly or indirectly, from the thread that
        // set this flag.
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Notes that memory was noted on the stream.
    pub(crate) fn note(&self) {
        self.is_noted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Relaxed)
    }

    /// Runs a call by which the stream joins a capture. Waits for memory that was noted on this stream use the event
    /// `before`, recorded before the call.
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

    /// Returns the current end of the stream.
    pub(crate) fn end(&self) -> Point {
        self.state.lock().clock.point()
    }
}

impl Streams {
    /// Returns a stream by id, if it is in this list.
    pub(crate) fn find(&self, id: StreamId) -> Option<Arc<Core>> {
        let made = self.made.lock();
        made.iter().find(|core| core.id == id).cloned()
    }

    /// Destroys all streams, when no handle is left.
    pub(crate) fn close(&self, backend: &dyn Backend) {
        let made = std::mem::take(&mut *self.made.lock());
        for core in made {
            // SAFETY: the stream was created here, and has no handle.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
    }
}
