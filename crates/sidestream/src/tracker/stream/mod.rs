//! The streams of a device, with what is known of their ends.

mod held;
mod issue;
mod outside;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::explicit::Capturing;
use super::mark::{Mark, OwnEvent, Recorded};
use super::runtime::{Place, Runtime};
use crate::backend::{Backend, Create, Destroy};
use crate::error::{Error, Result};
use crate::op::{DeviceId, EventId, StreamId, StreamKind};
use crate::order::live::{Point, StreamClock};

pub(crate) use issue::{Bare, Call, Source, Touch, belong, is_of};
pub(crate) use outside::{Ended, Made};

/// A stream of a device. Clones are the same stream.
///
/// It is a non-blocking stream: it takes no part in the order of the legacy default stream. When
/// the last clone is dropped its work still runs, and the device may give it to the next who asks
/// for a stream of the same name and priority.
#[derive(Clone)]
pub struct Stream {
    // Before the runtime: it holds marks, as an `Event` does.
    pub(crate) core: Arc<Core>,
    pub(crate) runtime: Arc<Runtime>,
}

/// What clones of a stream share, and what stays when they are gone.
pub(crate) struct Core {
    pub id: StreamId,
    pub device: DeviceId,
    name: String,
    pub priority: i32,
    made: Made,
    /// Whether an event is recorded behind every call that uses memory.
    is_marking: bool,
    /// Whether code that is not ours may put work into it: its handle was given away, or is theirs, or
    /// everybody has it.
    is_shared: AtomicBool,
    /// Whether memory was noted on it, which somebody may wait for at any time.
    is_noted: AtomicBool,
    /// What it takes part in. A stream of the safe API does so only if other code sees to it.
    pub capture: Capturing,
    /// The newest event that was recorded for those who wait for memory that was noted. While it is
    /// locked the stream joins no capture of ours. No other lock is taken meanwhile.
    last: Mutex<Option<Arc<Recorded>>>,
    pub state: Mutex<State>,
}

/// What the lock of a stream guards.
pub(crate) struct State {
    pub clock: StreamClock,
    /// Whether the newest mark is the end of the stream: nothing has come behind it.
    is_marked: bool,
    /// Marks that were made, the newest last; one that nobody else holds is made anew.
    marks: VecDeque<Arc<Recorded>>,
    /// What streams of the explicit style wait for, recorded for each wait; made for the first.
    link: Option<OwnEvent>,
}

/// The streams of a device that were made so far. The driver's streams are kept: making one takes
/// longer than all that is done here.
#[derive(Default)]
pub(crate) struct Streams {
    made: Mutex<Vec<Arc<Core>>>,
}

impl State {
    /// The end of the stream, if an event was recorded there.
    #[inline]
    fn end(&self) -> Option<Mark> {
        let newest = self.marks.back().filter(|_| self.is_marked);
        newest.map(|mark| Mark::Recorded(Arc::clone(mark)))
    }

    /// A mark that nobody waits for any more becomes the end of the stream. Only a few are looked
    /// at: marks die in about the sequence in which they were made.
    #[inline]
    fn renew_mark(&mut self) -> Option<EventId> {
        for _ in 0..self.marks.len().min(4) {
            let mut oldest = self.marks.pop_front()?;
            let spare = Arc::get_mut(&mut oldest).map(|spare| {
                self.clock.point_into(&mut spare.point);
                spare.event.id
            });
            self.marks.push_back(oldest);
            if spare.is_some() {
                return spare;
            }
        }
        None
    }
}

impl Core {
    /// A stream of the driver, new or adopted.
    pub fn new(
        runtime: &Runtime,
        device: DeviceId,
        kind: StreamKind,
        priority: i32,
        name: &str,
        made: Made,
    ) -> Result<Arc<Core>> {
        let id = runtime.live.new_stream(kind, device, name);
        Core::named(runtime, id, device, kind, priority, name, made)
    }

    /// The same with an id that stands for no stream yet: one that could not be made when the log was told of it.
    pub fn named(
        runtime: &Runtime,
        id: StreamId,
        device: DeviceId,
        kind: StreamKind,
        priority: i32,
        name: &str,
        made: Made,
    ) -> Result<Arc<Core>> {
        let adopt = made.adopted();
        if !matches!(made, Made::Safe { .. }) {
            runtime.meets_captures.store(true, Ordering::Relaxed);
        }
        let create = Create::Stream {
            id,
            device,
            kind,
            priority,
            name,
            adopt,
        };
        // SAFETY: the id stands for nothing. For a handle of another library its caller has promised (`Stream::from_raw`).
        let created = unsafe { runtime.backend.create(create) };
        runtime.seen(created)?;
        Ok(Arc::new(Core {
            id,
            device,
            name: name.to_owned(),
            priority,
            made,
            is_marking: !matches!(made, Made::Safe { is_marking: false }),
            is_shared: AtomicBool::new(adopt.is_some() || kind.is_default()),
            is_noted: AtomicBool::new(false),
            capture: Capturing::default(),
            last: Mutex::default(),
            state: Mutex::new(State {
                clock: StreamClock::new(runtime.new_chain()),
                is_marked: false,
                marks: VecDeque::new(),
                link: None,
            }),
        }))
    }

    /// The end of the stream so far.
    pub fn end(&self) -> Point {
        self.state.lock().clock.point()
    }
}

impl Streams {
    /// A stream that nobody holds and that has nothing to do, or a new one.
    pub fn get(
        &self,
        runtime: &Arc<Runtime>,
        device: DeviceId,
        name: &str,
        priority: i32,
        is_marking: bool,
        at: Place,
    ) -> Result<Stream> {
        runtime.check()?;
        is_priority(runtime, device, priority)?;
        let made = Made::Safe { is_marking };
        let alike =
            |core: &Core| core.name == name && core.priority == priority && core.made == made;
        if let Some(core) = self.idle(runtime, alike, at)? {
            let runtime = Arc::clone(runtime);
            return Ok(Stream { runtime, core });
        }
        let kind = StreamKind::NonBlocking;
        let core = Core::new(runtime, device, kind, priority, name, made)?;
        self.made.lock().push(Arc::clone(&core));
        let runtime = Arc::clone(runtime);
        Ok(Stream { runtime, core })
    }

    /// A stream, if it is one of these.
    pub fn find(&self, id: StreamId) -> Option<Arc<Core>> {
        let made = self.made.lock();
        made.iter().find(|core| core.id == id).cloned()
    }

    /// A handle for every stream there is.
    pub fn all(&self, runtime: &Arc<Runtime>) -> Vec<Stream> {
        let made = self.made.lock();
        let handles = made.iter().map(|core| Stream {
            runtime: Arc::clone(runtime),
            core: Arc::clone(core),
        });
        handles.collect()
    }

    /// Gives all of them back: nobody holds any.
    pub fn close(&self, backend: &dyn Backend) {
        let made = std::mem::take(&mut *self.made.lock());
        for core in made {
            // SAFETY: it was made here, and nobody has a handle.
            unsafe { backend.destroy(Destroy::Stream(core.id)) };
        }
    }

    fn idle(
        &self,
        runtime: &Arc<Runtime>,
        alike: impl Fn(&Core) -> bool,
        at: Place,
    ) -> Result<Option<Arc<Core>>> {
        let unused: Vec<Arc<Core>> = {
            let made = self.made.lock();
            let unused = made.iter().filter(|core| alike(core));
            let unused = unused.filter(|core| Arc::strong_count(core) == 1);
            unused.cloned().collect()
        };
        // Those that other code captures have something to do.
        for core in (unused.into_iter()).filter(|core| core.refuse_captured(runtime).is_ok()) {
            // Another thread may have taken it in between: it would be held by three.
            let last = core.state.lock().end();
            let is_over = match last {
                Some(mark) if !core.is_shared() => runtime.query(&mark, at)?,
                // Never used, or ends with a wait, or with work of other code for all that one knows: then
                // a mark is made for the question.
                _ => {
                    let runtime = Arc::clone(runtime);
                    let core = Arc::clone(&core);
                    Stream { runtime, core }.query_at(at)?
                }
            };
            if is_over && Arc::strong_count(&core) == 2 {
                return Ok(Some(core));
            }
        }
        Ok(None)
    }
}

/// Whether the device has this priority.
pub(crate) fn is_priority(runtime: &Runtime, device: DeviceId, priority: i32) -> Result<()> {
    let caps = &runtime.backend.devices()[device.0 as usize];
    let (most_urgent, least_urgent) = caps.priorities;
    if (most_urgent..=least_urgent).contains(&priority) {
        return Ok(());
    }
    Err(Error::Invalid {
        call: "stream",
        why: format!(
            "priority {priority} is outside of {most_urgent} (most urgent) to {least_urgent}"
        ),
    })
}

impl Stream {
    #[track_caller]
    pub(crate) fn query_at(&self, at: Place) -> Result<bool> {
        if self.core.is_shared() {
            self.runtime.check()?;
            self.core.refuse_captured(&self.runtime)?;
            return self.query_itself(at);
        }
        let mark = self.mark(at)?;
        self.runtime.query(&mark, at)
    }

    pub(crate) fn finish_at(&self, at: Place) -> Result<()> {
        let mark = self.mark(at)?;
        self.runtime.synchronize(&mark, at)
    }
}
