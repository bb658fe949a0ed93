//! Memory that nobody tracks, and the captures that touch it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::telling::Place;
use crate::backend::Address;
use crate::log::{Pen, Within};
use crate::op::{Access, BufferId, DeviceId, Memory, Mode};

/// What the log and the back end know of some memory. It does not own it.
pub(crate) struct Untracked {
    pub memory: Memory,
    pub device: DeviceId,
    pub address: Address,
    pub size_bytes: u64,
    /// Where it was allocated.
    pub at: Place,
    /// The first one who had the same bytes.
    pub first: Option<Arc<Untracked>>,
    pub name: Mutex<Option<BufferId>>,
}

impl Untracked {
    /// What the log calls it.
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

    /// The beginning and the end of a life are a write of all of it.
    pub(crate) fn whole(&self, pen: &mut Pen<'_>) -> Access {
        Access {
            buffer: self.name(pen),
            start: 0,
            end: self.size_bytes,
            mode: Mode::Write,
        }
    }
}

/// Bytes that a graph touches.
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

/// A capture, from its begin to its end.
#[derive(Default)]
pub(crate) struct Capture {
    /// It is open until it ends.
    has_ended: AtomicBool,
    /// What its nodes touch.
    pub touched: Mutex<Vec<Kept>>,
}

/// The capture that a stream takes part in. Nearly always there is none, and no lock is taken to see
/// that.
#[derive(Default)]
pub(crate) struct Capturing {
    is_any: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

impl Capture {
    pub(crate) fn is_open(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    /// It is over; gives what it touches.
    pub(crate) fn end(&self) -> Vec<Kept> {
        self.has_ended.store(true, Ordering::Relaxed);
        std::mem::take(&mut *self.touched.lock())
    }
}

impl Capturing {
    /// The capture, if it is open.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<Capture>> {
        match self.is_any.load(Ordering::Acquire) {
            false => None,
            true => self.look(),
        }
    }

    #[cold]
    fn look(&self) -> Option<Arc<Capture>> {
        let mut capture = self.capture.lock();
        // It ended on the stream on which it began.
        if capture.as_ref().is_some_and(|capture| !capture.is_open()) {
            *capture = None;
            self.is_any.store(false, Ordering::Release);
        }
        capture.clone()
    }

    /// From here on the stream takes part in this one.
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
