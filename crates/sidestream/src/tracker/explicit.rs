//! State of a device for the explicit style: memory that was freed in stream order, captures in progress, default
//! streams, and streams without handles.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

use super::captured::{Capture, Untracked};
use super::streams::{Core, Ended};
use crate::backend::{Address, Backend, Destroy};
use crate::op::{DeviceId, FlagId, StreamId};

/// State of a device for the explicit style.
#[derive(Default)]
pub(crate) struct OfDevice {
    pub legacy: Mutex<Legacy>,
    pub per_thread: Mutex<PerThread>,
    /// Memory that was freed in stream order; the most recently freed is last.
    pub freed: Mutex<Vec<Freed>>,
    pub gone: Mutex<Gone>,
    /// Locked from the end of a capture until it is a graph.
    pub instantiates: Mutex<()>,
    pub captures: Mutex<Vec<Weak<Capture>>>,
    /// Flags of the whole machine, on its first device.
    pub flags: Mutex<Flags>,
    /// The log's stand-ins for other processes: a stream and, on the first device, a thread.
    pub elsewhere: OnceLock<StreamId>,
    pub thread_elsewhere: OnceLock<crate::op::ThreadId>,
}

/// The legacy default stream. The log has one per device, even if the driver refused it at first.
#[derive(Default)]
pub(crate) struct Legacy {
    pub id: Option<StreamId>,
    pub core: Option<Arc<Core>>,
}

/// The default stream of each thread that asked for it. The keys are the system's thread ids, since the driver's
/// streams end with these threads; the log reuses its own thread ids.
pub(crate) type PerThread = HashMap<ThreadId, Arc<Core>>;

/// Flags by which threads hand over to each other.
#[derive(Default)]
pub(crate) struct Flags {
    next: u32,
    pub spare: Vec<FlagId>,
}

impl Flags {
    pub(crate) fn get(&mut self) -> FlagId {
        self.spare.pop().unwrap_or_else(|| {
            self.next += 1;
            FlagId(self.next - 1)
        })
    }
}

/// Streams without handles.
#[derive(Default)]
pub(crate) struct Gone {
    /// Streams on which memory was noted: each is kept as long as a mark refers to it.
    noted: Vec<Arc<Core>>,
    /// The number of streams at which those without marks are searched for and destroyed.
    look_at: usize,
    /// The ends of destroyed streams; the earliest destroyed is at the front.
    pub ended: VecDeque<Ended>,
}

/// Minimum number of streams for such a search.
const NOTED_AT_LEAST: usize = 16;
/// The number of ends that are queried before a new chain is made.
const ENDS_ASKED: usize = 2;

impl OfDevice {
    /// Keeps a stream without handles on which memory was noted. Returns those streams that no mark refers to any
    /// more.
    pub(crate) fn keep_noted(&self, core: Arc<Core>) -> Vec<Arc<Core>> {
        let mut gone = self.gone.lock();
        gone.noted.push(core);
        if gone.noted.len() < gone.look_at.max(NOTED_AT_LEAST) {
            return Vec::new();
        }
        let noted = std::mem::take(&mut gone.noted);
        let (waited, free) = noted
            .into_iter()
            .partition(|core| Arc::strong_count(core) > 1);
        gone.noted = waited;
        gone.look_at = 2 * gone.noted.len();
        free
    }

    /// Returns the end of a destroyed stream, if it is complete.
    pub(crate) fn take_ended(&self, is_over: impl Fn(&Ended) -> bool) -> Option<Ended> {
        for _ in 0..ENDS_ASKED {
            let ended = self.gone.lock().ended.pop_front()?;
            if is_over(&ended) {
                return Some(ended);
            }
            self.gone.lock().ended.push_back(ended);
        }
        None
    }

    /// Removes a thread's default stream when the thread ends.
    pub(crate) fn end_thread(&self, thread: ThreadId) {
        self.per_thread.lock().remove(&thread);
    }

    /// Destroys the remaining noted streams, after all work is complete. The default streams themselves stay; marks
    /// on them are dropped.
    pub(crate) fn close(&self, backend: &dyn Backend) {
        drop(self.legacy.lock().core.take());
        self.per_thread.lock().clear();
        let Gone { noted, ended, .. } = std::mem::take(&mut *self.gone.lock());
        for core in noted {
            // SAFETY: the stream has no handles, and all work is complete.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
        drop(ended);
    }

    /// Returns memory that was freed in the order of this stream, for its next owner on the same stream (R33, R34).
    pub(crate) fn take_freed(&self, stream: StreamId, size_bytes: u64) -> Option<Freed> {
        let mut freed = self.freed.lock();
        let fits = |freed: &Freed| freed.stream == stream && freed.memory.size_bytes == size_bytes;
        let at = freed.iter().rposition(fits)?;
        Some(freed.remove(at))
    }

    /// Returns the addresses of the freed memory that was not allocated again.
    pub(crate) fn freed(&self) -> Vec<(DeviceId, Address)> {
        let freed = self.freed.lock();
        let each = freed.iter();
        each.map(|f| (f.memory.device, f.memory.address)).collect()
    }

    /// Whether a capture that began on this device is in progress.
    pub(crate) fn is_capturing(&self) -> bool {
        let mut captures = self.captures.lock();
        captures.retain(|capture| capture.upgrade().is_some_and(|c| c.is_open()));
        !captures.is_empty()
    }
}

/// Device memory that was freed in stream order.
pub(crate) struct Freed {
    pub stream: StreamId,
    pub memory: Arc<Untracked>,
}
