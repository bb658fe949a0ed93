//! Where a use is over, and how to wait for it: a point of a stream, with or without an event of the driver's.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::recorded::Recorded;
use super::streams::{Core, Made, State};
use crate::op::{DeviceId, Kind, StreamId};
use crate::order::Epoch;
use crate::order::live::Point;

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

    /// The question whether it is over, and the call that waits for it.
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
    /// The end of the stream, if an event was recorded there.
    #[inline]
    pub(crate) fn end(&self) -> Option<Mark> {
        let newest = self.marks.back().filter(|_| self.is_marked);
        newest.map(|mark| Mark::Recorded(Arc::clone(mark)))
    }
}

impl Core {
    /// Where the uses of memory end that was noted here and goes now.
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
                // The device keeps it.
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
