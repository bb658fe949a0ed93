//! Where a use is over, and how to wait for it: a point of a stream, with or without an event of the driver's.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Core;
use crate::backend::{Backend, Destroy};
use crate::op::{DeviceId, EventId, Kind, StreamId};
use crate::order::Epoch;
use crate::order::live::Point;
use crate::process::Process;

/// Where a use is over: a point, and how to wait for it.
#[derive(Clone)]
pub(crate) enum Mark {
    /// An event was recorded right there.
    Recorded(Arc<Recorded>),
    /// None was, or the record failed. Whoever waits records one in the stream, behind all that came
    /// after: later than needed, and never too early.
    Stream(Arc<Unrecorded>),
}

/// A point of a stream without an event.
pub(crate) struct Unrecorded {
    pub point: Point,
    pub stream: StreamId,
    pub device: DeviceId,
    /// The stream, if it is of the explicit style: it may be captured before anybody waits for it.
    pub core: Option<Arc<Core>>,
    /// The event that was recorded behind it when it was asked for.
    pub event: OnceLock<Arc<Recorded>>,
}

/// A point with the event that was recorded there.
pub(crate) struct Recorded {
    pub point: Point,
    pub stream: StreamId,
    pub event: OwnEvent,
}

/// An event of the driver. Its id goes back to the spare ones when nobody waits for it any more.
pub(crate) struct OwnEvent {
    pub id: EventId,
    pub device: DeviceId,
    pub spare: Arc<SpareEvents>,
}

/// Events that can be recorded again.
#[derive(Default)]
pub(crate) struct SpareEvents(pub Mutex<Vec<EventId>>, Process);

impl SpareEvents {
    /// Gives all of them back.
    pub fn close(&self, backend: &dyn Backend) {
        let events = std::mem::take(&mut *self.0.lock());
        for event in events {
            // SAFETY: it was made here, and nobody has a spare one.
            unsafe { backend.destroy(Destroy::Event(event)) };
        }
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // In a child of a fork the lock may be held by nobody who is there.
        if self.spare.1.is_this() {
            self.spare.0.lock().push(self.id);
        }
    }
}

impl Mark {
    #[inline]
    pub fn point(&self) -> &Point {
        match self {
            Mark::Recorded(recorded) => &recorded.point,
            Mark::Stream(at) => &at.point,
        }
    }

    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.point().epoch()
    }

    pub fn stream(&self) -> StreamId {
        match self {
            Mark::Recorded(recorded) => recorded.stream,
            Mark::Stream(at) => at.stream,
        }
    }

    /// The question whether it is over, and the call that waits for it.
    pub fn asked(&self, done: bool) -> Kind {
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

    pub fn awaited(&self) -> Kind {
        match self {
            Mark::Recorded(recorded) => Kind::SyncEvent {
                event: recorded.event.id,
            },
            Mark::Stream(at) => Kind::SyncStream { stream: at.stream },
        }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.epoch())
    }
}
