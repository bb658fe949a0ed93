//! The state that the machine keeps of streams and events: their handles, and the latest work of each stream, for
//! reporting which work is not known to be complete after a failure.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::driver::{CuEvent, CuStream};
use crate::op::{DeviceId, StreamId};

/// Number of recent operations that are remembered per stream.
const RECENT: usize = 16;

/// A stream. Calls on one stream are serialized, so its fields only have to be readable at any time.
#[derive(Default)]
pub(super) struct Stream {
    handle: AtomicU64,
    device: AtomicU32,
    is_open: AtomicBool,
    /// Whether the stream was created here, and is therefore destroyed here.
    is_ours: AtomicBool,
    /// Number of operations submitted so far, and how many of them are known to be complete.
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
    /// The stream of the latest record, and the number of its operations at that time.
    stream: AtomicU32,
    given: AtomicU64,
}

/// The kind of an operation in a stream, enough to name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A kernel, by its index in the machine's list of names.
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

    /// Returns the handle if the driver's stream has to be destroyed.
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

    /// Notes an operation that was submitted.
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

    /// Notes that the first `given` operations are complete.
    #[inline]
    pub(super) fn is_done_up_to(&self, given: u64) {
        self.known_done.fetch_max(given, Relaxed);
    }

    /// Returns the remembered operations that are not known to be complete, the oldest first, and the number of
    /// earlier ones.
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

    /// Returns the handle if the driver's event has to be destroyed.
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

    /// Notes a record.
    #[inline]
    pub(super) fn note(&self, id: StreamId, stream: &Stream) {
        self.stream.store(id.0, Relaxed);
        self.given.store(stream.given(), Relaxed);
    }

    /// Returns the stream of the latest record, and the number of its operations at that time.
    #[inline]
    pub(super) fn recorded(&self) -> (StreamId, u64) {
        (
            StreamId(self.stream.load(Relaxed)),
            self.given.load(Relaxed),
        )
    }
}
