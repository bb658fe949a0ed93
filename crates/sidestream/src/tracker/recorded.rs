//! Events of the driver that the runtime records.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::{Backend, Destroy};
use crate::op::{DeviceId, EventId, StreamId};
use crate::order::live::Point;
use crate::process::Process;

/// A point with the event that was recorded there.
pub(crate) struct Recorded {
    pub point: Point,
    pub stream: StreamId,
    pub event: OwnEvent,
}

/// An event of the driver. When it is dropped its id becomes a spare one.
pub(crate) struct OwnEvent {
    pub id: EventId,
    pub device: DeviceId,
    pub spare: Arc<SpareEvents>,
}

/// Events that can be reused.
#[derive(Default)]
pub(crate) struct SpareEvents(pub Mutex<Vec<EventId>>, Process);

impl SpareEvents {
    /// Destroys all of them.
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
        // In a child of a fork the lock may be held by a thread that does not exist there.
        if self.spare.1.is_this() {
            self.spare.0.lock().push(self.id);
        }
    }
}
