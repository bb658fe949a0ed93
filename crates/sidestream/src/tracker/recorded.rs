//! Driver events that the runtime records.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::{Backend, Destroy};
use crate::op::{DeviceId, EventId, StreamId};
use crate::order::live::Point;
use crate::process::Process;

/// A point of a stream, with the event that was recorded there.
pub(crate) struct Recorded {
    pub point: Point,
    pub stream: StreamId,
    pub event: OwnEvent,
}

/// A driver event. When it is dropped, its id becomes a spare one.
pub(crate) struct OwnEvent {
    pub id: EventId,
    pub device: DeviceId,
    pub spare: Arc<SpareEvents>,
}

/// Events that can be reused.
#[derive(Default)]
pub(crate) struct SpareEvents(pub Mutex<Vec<EventId>>, Process);

impl SpareEvents {
    /// Destroys all spare events.
    pub(crate) fn close(&self, backend: &dyn Backend) {
        let events = std::mem::take(&mut *self.0.lock());
        for event in events {
            // SAFETY: the event was created here, and a spare event has no other user.
            unsafe { backend.destroy(Destroy::Event(event)) };
        }
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // In a forked child the lock may have been left locked by a thread that exists only in the parent.
        if self.spare.1.is_this() {
            self.spare.0.lock().push(self.id);
        }
    }
}
