//! Events of the driver that the runtime records for itself.

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
    pub(crate) fn close(&self, backend: &dyn Backend) {
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
