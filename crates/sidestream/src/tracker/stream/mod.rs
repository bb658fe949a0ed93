//! Stream handles: how a stream is obtained and queried.

mod ends;
mod held;
mod issue;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::block::{Block, Touch};
use super::captured::Capturing;
use super::runtime::Runtime;
use super::streams::{Core, Made, State, Streams};
use super::telling::Place;
use crate::backend::Create;
use crate::error::{Error, Result};
use crate::op::{DeviceId, StreamId, StreamKind};
use crate::order::live::StreamClock;

pub(crate) use issue::{Bare, Call, Source};

/// A stream of a device. Clones are the same stream.
///
/// The stream is non-blocking: it is not ordered with the legacy default stream. When the last clone is dropped its
/// submitted work still runs, and the device may return the stream for a later request with the same name and priority.
#[derive(Clone)]
pub struct Stream {
    // Dropped before the runtime, because the core has marks, as an `Event` does.
    pub(crate) core: Arc<Core>,
    pub(crate) runtime: Arc<Runtime>,
}

impl Core {
    /// Creates or adopts a stream of the driver.
    pub(crate) fn new(
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

    /// Like [`Core::new`], with an id that is not in use yet, such as the logged id of a stream whose creation
    /// failed.
    pub(crate) fn named(
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
        // SAFETY: the id is not in use. For another library's handle the caller of `Stream::from_raw` has promised
        // the rest.
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
}

impl Streams {
    /// Returns an idle stream without handles, or a new one.
    pub(crate) fn get(
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

    /// Returns a handle of every stream.
    pub(crate) fn all(&self, runtime: &Arc<Runtime>) -> Vec<Stream> {
        let made = self.made.lock();
        let handles = made.iter().map(|core| Stream {
            runtime: Arc::clone(runtime),
            core: Arc::clone(core),
        });
        handles.collect()
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
        // A stream that other code captures is not idle.
        for core in (unused.into_iter()).filter(|core| core.refuse_captured(runtime).is_ok()) {
            // Another thread may have taken the stream meanwhile: then it has three references.
            let last = core.state.lock().end();
            let is_over = match last {
                Some(mark) if !core.is_shared() => runtime.query(&mark, at)?,
                // The stream was never used, or it ends with a wait or possibly with work of other code.
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

/// Checks that a call may name all these blocks: they have to belong to the stream's machine.
#[inline]
pub(crate) fn belong(stream: &Stream, call: &'static str, touches: &[Touch<'_>]) -> Result<()> {
    let mut blocks = touches.iter().map(|touch| touch.block);
    blocks.try_for_each(|block| is_of(stream, call, block))
}

/// Checks that a call may name this block.
#[inline]
pub(crate) fn is_of(stream: &Stream, call: &'static str, block: &Block) -> Result<()> {
    if Arc::ptr_eq(&block.runtime, &stream.runtime) {
        Ok(())
    } else {
        Err(foreign(call))
    }
}

#[cold]
fn foreign(call: &'static str) -> Error {
    Error::Invalid {
        call,
        why: "the buffer and the stream are of separate `Device::open` calls; open both devices with \
              one `Device::open_all`"
            .into(),
    }
}

/// Checks that the device has this priority.
pub(crate) fn is_priority(runtime: &Runtime, device: DeviceId, priority: i32) -> Result<()> {
    let caps = &runtime.backend.devices()[device.0 as usize];
    let (most_urgent, least_urgent) = caps.priorities;
    if (most_urgent..=least_urgent).contains(&priority) {
        return Ok(());
    }
    Err(Error::Invalid {
        call: "stream",
        why: format!(
            "priority {priority} is not in the range {most_urgent} (most urgent) to {least_urgent}"
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
