//! What the explicit style keeps of a device: memory that was freed in the order of a stream, captures that are under way,
//! default streams, and streams without handles.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

use super::captured::{Capture, Untracked};
use super::streams::{Core, Ended};
use crate::backend::{Address, Backend, Destroy};
use crate::op::{DeviceId, FlagId, StreamId};

/// What the explicit style keeps of a device.
#[derive(Default)]
pub(crate) struct OfDevice {
    pub legacy: Mutex<Legacy>,
    pub per_thread: Mutex<PerThread>,
    /// The last to be freed is at the end.
    pub freed: Mutex<Vec<Freed>>,
    pub gone: Mutex<Gone>,
    /// Held from the end of a capture until it is a graph.
    pub instantiates: Mutex<()>,
    pub captures: Mutex<Vec<Weak<Capture>>>,
    /// Of the whole machine, on its first device.
    pub flags: Mutex<Flags>,
    /// What the log has of other processes: a stream, and on the first device their thread.
    pub elsewhere: OnceLock<StreamId>,
    pub thread_elsewhere: OnceLock<crate::op::ThreadId>,
}

/// The legacy default stream. A log has one of a device, also where the driver refused it first.
#[derive(Default)]
pub(crate) struct Legacy {
    pub id: Option<StreamId>,
    pub core: Option<Arc<Core>>,
}

/// The default stream of each thread that asked for it. The log numbers threads anew when they have
/// ended; these are the system's, since the driver's streams end with them.
pub(crate) type PerThread = HashMap<ThreadId, Arc<Core>>;

/// Flags for what threads hand over.
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
    /// Somebody may wait for what was noted on them: they are there as long as marks are.
    noted: Vec<Arc<Core>>,
    /// When there are so many of these, those are looked for that nobody can wait for any more.
    look_at: usize,
    /// Of streams that were given back; the first to go is at the front.
    pub ended: VecDeque<Ended>,
}

/// Fewer are not looked through.
const NOTED_AT_LEAST: usize = 16;
/// So many ends are asked about before a new chain is taken.
const ENDS_ASKED: usize = 2;

impl OfDevice {
    /// Keeps a stream without handles on which memory was noted. Gives those that nobody can wait for any more.
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

    /// The end of a stream that is gone, if it is over.
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

    /// A thread ends, and its default stream with it.
    pub(crate) fn end_thread(&self, thread: ThreadId) {
        self.per_thread.lock().remove(&thread);
    }

    /// Gives back the streams that nobody can wait for any more: all work is over. The default streams stay, and what was
    /// recorded there goes.
    pub(crate) fn close(&self, backend: &dyn Backend) {
        drop(self.legacy.lock().core.take());
        self.per_thread.lock().clear();
        let Gone { noted, ended, .. } = std::mem::take(&mut *self.gone.lock());
        for core in noted {
            // SAFETY: nobody has the stream, and all work is over.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
        drop(ended);
    }

    /// Memory that was freed in the order of this stream, for its next owner there (R33, R34).
    pub(crate) fn take_freed(&self, stream: StreamId, size_bytes: u64) -> Option<Freed> {
        let mut freed = self.freed.lock();
        let fits = |freed: &Freed| freed.stream == stream && freed.memory.size_bytes == size_bytes;
        let at = freed.iter().rposition(fits)?;
        Some(freed.remove(at))
    }

    /// The memory that nobody took again.
    pub(crate) fn freed(&self) -> Vec<(DeviceId, Address)> {
        let freed = self.freed.lock();
        let each = freed.iter();
        each.map(|f| (f.memory.device, f.memory.address)).collect()
    }

    /// Whether a capture that began on it is under way.
    pub(crate) fn is_capturing(&self) -> bool {
        let mut captures = self.captures.lock();
        captures.retain(|capture| capture.upgrade().is_some_and(|c| c.is_open()));
        !captures.is_empty()
    }
}

/// Device memory that was freed in the order of a stream.
pub(crate) struct Freed {
    pub stream: StreamId,
    pub memory: Arc<Untracked>,
}
