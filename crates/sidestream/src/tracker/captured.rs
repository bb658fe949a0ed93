//! Memory that is not tracked, and the captures that touch it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::telling::Place;
use crate::backend::Address;
use crate::log::{Pen, Within};
use crate::op::{Access, BufferId, DeviceId, Memory, Mode};

/// The state of a piece of memory in the log and in the back end. Does not own the memory.
pub(crate) struct Untracked {
    pub memory: Memory,
    pub device: DeviceId,
    pub address: Address,
    pub size_bytes: u64,
    /// The source location of the allocation.
    pub at: Place,
    /// The first allocation of these bytes, if they were reused in stream order.
    pub first: Option<Arc<Untracked>>,
    pub name: Mutex<Option<BufferId>>,
}

impl Untracked {
    /// Returns the memory's id in the log.
    pub(crate) fn name(&self, pen: &mut Pen<'_>) -> BufferId {
        let mut name = self.name.lock();
        *name.get_or_insert_with(|| {
            let within = self.first.as_ref().map(|first| Within {
                buffer: first.name(pen),
                start: 0,
            });
            let text = format!("{}:{}", self.at.file(), self.at.line());
            pen.new_buffer(self.memory, self.size_bytes, within, &text)
        })
    }

    /// Returns a write of the whole memory; allocation and free count as such a write.
    pub(crate) fn whole(&self, pen: &mut Pen<'_>) -> Access {
        Access {
            buffer: self.name(pen),
            start: 0,
            end: self.size_bytes,
            mode: Mode::Write,
        }
    }
}

/// A range of bytes that a graph touches.
pub(crate) struct Kept {
    pub memory: Arc<Untracked>,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
}

impl Kept {
    pub(crate) fn access(&self, pen: &mut Pen<'_>) -> Access {
        Access {
            buffer: self.memory.name(pen),
            start: self.start,
            end: self.end,
            mode: self.mode,
        }
    }
}

/// A capture, from its beginning to its end.
#[derive(Default)]
pub(crate) struct Capture {
    /// Whether the capture has ended; until then it is open.
    has_ended: AtomicBool,
    /// The accesses of its nodes.
    pub touched: Mutex<Vec<Kept>>,
}

/// The capture that a stream takes part in. There is almost never one, so that case is checked without a lock.
#[derive(Default)]
pub(crate) struct Capturing {
    is_any: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

impl Capture {
    pub(crate) fn is_open(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    /// Ends the capture; returns its accesses.
    pub(crate) fn end(&self) -> Vec<Kept> {
        self.has_ended.store(true, Ordering::Relaxed);
        std::mem::take(&mut *self.touched.lock())
    }
}

impl Capturing {
    /// Returns the capture, if it is open.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<Capture>> {
        if self.is_any.load(Ordering::Acquire) {
            self.look()
        } else {
            None
        }
    }

    #[cold]
    fn look(&self) -> Option<Arc<Capture>> {
        let mut capture = self.capture.lock();
        // The capture may have ended on the stream on which it began.
        if capture.as_ref().is_some_and(|capture| !capture.is_open()) {
            *capture = None;
            self.is_any.store(false, Ordering::Release);
        }
        capture.clone()
    }

    /// Makes the stream take part in this capture.
    pub(crate) fn join(&self, joined: Arc<Capture>) {
        let mut capture = self.capture.lock();
        *capture = Some(joined);
        self.is_any.store(true, Ordering::Release);
    }

    pub(crate) fn take(&self) -> Option<Arc<Capture>> {
        let mut capture = self.capture.lock();
        self.is_any.store(false, Ordering::Release);
        capture.take()
    }
}
