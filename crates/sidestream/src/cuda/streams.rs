//! What the machine keeps of streams and events: their handles, and what was put into a stream last,
//! so that a failure can say what is not known to be done.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::driver::{CuEvent, CuStream};
use crate::op::{DeviceId, StreamId};

/// So many works of a stream are remembered.
const RECENT: usize = 16;

/// A stream. Calls on one stream come one after the other, so no field needs more than that it can
/// be read at any time.
#[derive(Default)]
pub(super) struct Stream {
    handle: AtomicU64,
    device: AtomicU32,
    is_open: AtomicBool,
    /// Made here, and so destroyed here.
    is_ours: AtomicBool,
    /// Works so far, and how many of them are known to be over.
    given: AtomicU64,
    known_done: AtomicU64,
    recent: [AtomicU64; RECENT],
}

/// An event.
#[derive(Default)]
pub(super) struct Event {
    handle: AtomicU64,
    device: AtomicU32,
    is_open: AtomicBool,
    sleeps: AtomicBool,
    /// Where it was recorded, and how many works there were.
    stream: AtomicU32,
    given: AtomicU64,
}

/// What was put into a stream: enough to name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A kernel, by its number in the machine's list of names.
    Kernel(u32),
    Copy,
    Memset,
    HostFunc,
    Graph,
}

impl Work {
    fn packed(self) -> u64 {
        match self {
            Work::Kernel(name) => u64::from(name) << 8 | 1,
            Work::Copy => 2,
            Work::Memset => 3,
            Work::HostFunc => 5,
            Work::Graph => 6,
        }
    }

    fn unpacked(word: u64) -> Option<Work> {
        Some(match word & 0xff {
            1 => Work::Kernel((word >> 8) as u32),
            2 => Work::Copy,
            3 => Work::Memset,
            5 => Work::HostFunc,
            6 => Work::Graph,
            _ => return None,
        })
    }
}

impl Stream {
    pub(super) fn open(&self, handle: CuStream, device: DeviceId, is_ours: bool) {
        self.handle.store(handle, Relaxed);
        self.device.store(device.0, Relaxed);
        self.is_ours.store(is_ours, Relaxed);
        self.known_done.store(self.given.load(Relaxed), Relaxed);
        self.is_open.store(true, Relaxed);
    }

    /// Its handle if the driver's stream is to be destroyed.
    pub(super) fn close(&self) -> Option<CuStream> {
        let was_open = self.is_open.swap(false, Relaxed);
        (was_open && self.is_ours.load(Relaxed)).then(|| self.handle())
    }

    #[inline]
    pub(super) fn handle(&self) -> CuStream {
        self.handle.load(Relaxed)
    }

    #[inline]
    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Relaxed))
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Something was put into it.
    #[inline]
    pub(super) fn note(&self, work: Work) {
        let given = self.given.load(Relaxed);
        self.recent[given as usize % RECENT].store(work.packed(), Relaxed);
        self.given.store(given + 1, Relaxed);
    }

    #[inline]
    pub(super) fn given(&self) -> u64 {
        self.given.load(Relaxed)
    }

    /// The first so many works are over.
    #[inline]
    pub(super) fn is_done_up_to(&self, given: u64) {
        self.known_done.fetch_max(given, Relaxed);
    }

    /// What is not known to be done, the oldest first, and how many more are no longer remembered.
    pub(super) fn unfinished(&self) -> (Vec<Work>, u64) {
        let given = self.given();
        let pending = given.saturating_sub(self.known_done.load(Relaxed));
        let kept = pending.min(RECENT as u64);
        let works = (given - kept..given).filter_map(|number| {
            let word = self.recent[number as usize % RECENT].load(Relaxed);
            Work::unpacked(word)
        });
        (works.collect(), pending - kept)
    }
}

impl Event {
    pub(super) fn open(&self, handle: CuEvent, device: DeviceId, sleeps: bool) {
        self.handle.store(handle, Relaxed);
        self.device.store(device.0, Relaxed);
        self.sleeps.store(sleeps, Relaxed);
        self.given.store(0, Relaxed);
        self.is_open.store(true, Relaxed);
    }

    /// Its handle if the driver's event is to be destroyed.
    pub(super) fn close(&self) -> Option<CuEvent> {
        self.is_open.swap(false, Relaxed).then(|| self.handle())
    }

    #[inline]
    pub(super) fn handle(&self) -> CuEvent {
        self.handle.load(Relaxed)
    }

    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Relaxed))
    }

    pub(super) fn sleeps(&self) -> bool {
        self.sleeps.load(Relaxed)
    }

    /// It was recorded.
    #[inline]
    pub(super) fn note(&self, id: StreamId, stream: &Stream) {
        self.stream.store(id.0, Relaxed);
        self.given.store(stream.given(), Relaxed);
    }

    /// The stream that it was last recorded in, and how many works that had then.
    #[inline]
    pub(super) fn recorded(&self) -> (StreamId, u64) {
        (
            StreamId(self.stream.load(Relaxed)),
            self.given.load(Relaxed),
        )
    }
}
