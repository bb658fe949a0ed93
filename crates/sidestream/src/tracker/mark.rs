//! Marks: the point of a stream at which a use is complete, with or without a driver event to wait for.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::recorded::Recorded;
use super::streams::{Core, Made, State};
use crate::op::{DeviceId, Kind, StreamId};
use crate::order::Epoch;
use crate::order::live::Point;

/// The point at which a use is complete, and how to wait for it.
#[derive(Clone)]
pub(crate) enum Mark {
    /// An event was recorded exactly there.
    Recorded(Arc<Recorded>),
    /// No event was recorded, or the record failed. A wait records one at the end of the stream, after any later work:
    /// later than needed, and never too early.
    Stream(Arc<Unrecorded>),
}

/// A point of a stream without an event.
pub(crate) struct Unrecorded {
    pub point: Point,
    pub stream: StreamId,
    pub device: DeviceId,
    /// The stream, if it belongs to the explicit style: it may be captured before the first wait for the mark.
    pub core: Option<Arc<Core>>,
    /// The event that was recorded after the point when a wait was first requested.
    pub event: OnceLock<Arc<Recorded>>,
}

impl Mark {
    #[inline]
    pub(crate) fn point(&self) -> &Point {
        match self {
            Mark::Recorded(recorded) => &recorded.point,
            Mark::Stream(at) => &at.point,
        }
    }

    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.point().epoch()
    }

    pub(crate) fn stream(&self) -> StreamId {
        match self {
            Mark::Recorded(recorded) => recorded.stream,
            Mark::Stream(at) => at.stream,
        }
    }

    /// Returns the op of a query of the mark.
    pub(crate) fn asked(&self, done: bool) -> Kind {
        match self {
            Mark::Recorded(recorded) => Kind::QueryEvent {
                event: recorded.event.id,
                done,
            },
            Mark::Stream(at) => Kind::QueryStream {
                stream: at.stream,
                done,
            },
        }
    }

    pub(crate) fn awaited(&self) -> Kind {
        match self {
            Mark::Recorded(recorded) => Kind::SyncEvent {
                event: recorded.event.id,
            },
            Mark::Stream(at) => Kind::SyncStream { stream: at.stream },
        }
    }
}

impl State {
    /// Returns the end of the stream, if an event was recorded there.
    #[inline]
    pub(crate) fn end(&self) -> Option<Mark> {
        let newest = self.marks.back().filter(|_| self.is_marked);
        newest.map(|mark| Mark::Recorded(Arc::clone(mark)))
    }
}

impl Core {
    /// Returns the mark that ends the uses of memory that was noted on this stream and is being dropped.
    pub(crate) fn noted_end(self: &Arc<Self>) -> Mark {
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
                // The device keeps such a stream alive.
                Made::Safe { .. } => None,
                Made::Explicit | Made::Adopted(_) => Some(Arc::clone(self)),
            },
        }))
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.epoch())
    }
}
