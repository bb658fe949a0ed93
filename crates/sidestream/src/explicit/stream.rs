//! Streams of every kind, and the order between them.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::event::Event;
use super::interprocess::Whose;
use super::memory::Region;
use super::{accesses, refuse_in_host_func, same_machine};
use crate::backend::{Destroy, Payload};
use crate::buffer::{Pod, View, ViewMut};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::log::Pen;
use crate::op::{Accesses, DeviceId, Kind, Mode, StreamId, StreamKind};
use crate::order::live::{Point, StreamClock};
use crate::tracker::{
    Bare, Capture, Core, Ended, Made, Mark, Place, Runtime, as_thread, is_priority,
    outside_callbacks,
};

/// A stream of any kind. Clones are the same stream.
///
/// Calls on it wait for nothing by themselves and track no uses. Dropping the last handle of a stream that was
/// created here is `cudaStreamDestroy`: its submitted work still runs.
#[derive(Clone)]
pub struct Stream {
    pub(super) own: Arc<Own>,
}

/// State that the handles of a stream share.
pub(super) struct Own {
    pub stream: crate::stream::Stream,
    /// The thread whose per-thread default stream this is.
    thread: Option<ThreadId>,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Created,
    Default,
    Adopted,
    Safe,
}

// ------------------------------------------------------------------ creating and opening streams

impl Stream {
    /// Returns the legacy default stream of a device, stream 0: each of its actions waits for all blocking streams,
    /// and they wait for it (R14).
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn legacy(device: &Device) -> Result<Stream> {
        Stream::legacy_of(&device.runtime, device.id())
    }

    /// Returns the per-thread default stream of the calling thread, `cudaStreamPerThread`. With respect to the legacy
    /// stream it is a blocking stream (R18). Other threads cannot use the handle.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn per_thread(device: &Device) -> Result<Stream> {
        let runtime = &device.runtime;
        runtime.check()?;
        let number = as_thread(runtime, |thread| thread.id);
        let thread = std::thread::current().id();
        let kept = &runtime.device(device.id()).explicit.per_thread;
        let mut kept = kept.lock();
        let core = match kept.get(&thread) {
            Some(known) => Arc::clone(known),
            None => {
                let name = format!("per-thread {}", number.0);
                let (kind, made) = (StreamKind::PerThread, Made::Explicit);
                let core = Core::new(runtime, device.id(), kind, 0, &name, made)?;
                kept.insert(thread, Arc::clone(&core));
                core
            }
        };
        Ok(Stream::new(runtime, core, Origin::Default, Some(thread)))
    }

    /// `cudaStreamCreate`: creates a stream that is ordered with the legacy default stream.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn blocking(device: &Device, name: &str) -> Result<Stream> {
        Stream::blocking_with_priority(device, name, 0)
    }

    /// `cudaStreamCreateWithPriority` with `cudaStreamDefault`: like [`Stream::blocking`]; a lower priority is more
    /// urgent.
    ///
    /// # Errors
    /// If the device has no such priority, or any error that the driver returns.
    #[track_caller]
    pub fn blocking_with_priority(device: &Device, name: &str, priority: i32) -> Result<Stream> {
        let kind = StreamKind::Blocking;
        Stream::create(device, kind, priority, name, Location::caller())
    }

    /// `cudaStreamCreateWithPriority` with `cudaStreamNonBlocking`: creates a stream without implicit order (R15). A
    /// lower priority is more urgent.
    ///
    /// # Errors
    /// If the device has no such priority, or any error that the driver returns.
    #[track_caller]
    pub fn non_blocking(device: &Device, name: &str, priority: i32) -> Result<Stream> {
        let kind = StreamKind::NonBlocking;
        Stream::create(device, kind, priority, name, Location::caller())
    }

    /// Adopts a stream of another library.
    ///
    /// # Safety
    /// `handle` is a stream of this device and of this kind in the driver on which the device runs, and stays valid
    /// until the last handle of the device is dropped. Work that other code submits to it is not in the log: no
    /// checker sees it, and the caller is responsible for its order with other work.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub unsafe fn from_raw(
        device: &Device,
        handle: u64,
        kind: StreamKind,
        name: &str,
    ) -> Result<Stream> {
        let runtime = &device.runtime;
        runtime.check()?;
        let core = Core::new(runtime, device.id(), kind, 0, name, Made::Adopted(handle))?;
        let stream = Stream::new(runtime, core, Origin::Adopted, None);
        stream.go_on(Location::caller());
        Ok(stream)
    }

    /// Returns a stream of the safe API for use in the explicit style. It cannot be captured.
    pub fn of(stream: &crate::stream::Stream) -> Stream {
        let core = Arc::clone(&stream.core);
        Stream::new(&stream.runtime, core, Origin::Safe, None)
    }

    /// Returns the driver's handle, for other libraries; `None` where there is no driver. Work that they submit to
    /// the stream is not in the log. From here on every query of the stream and every wait for it goes to the driver,
    /// since other code may have submitted work to it.
    pub fn as_raw(&self) -> Option<u64> {
        let handle = self.runtime().backend.raw_stream(self.id())?;
        self.core().share(self.runtime());
        Some(handle)
    }

    /// Returns whether work submitted to the stream becomes part of a capture instead of running, or would invalidate
    /// one, as in the legacy stream while a blocking stream is captured. For a stream that other code may capture the
    /// driver is asked; without an answer the stream counts as captured.
    pub fn is_captured(&self) -> bool {
        if !self.runtime().backend.is_this_process() {
            return true;
        }
        // This thread cannot query another thread's default stream.
        let is_asked = || self.core().is_shared() && self.is_mine().is_ok();
        self.own.captured_in().is_some()
            || is_asked() && self.runtime().backend.is_captured(self.id())
    }

    /// Returns whether both are handles of one stream.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }

    fn create(
        device: &Device,
        kind: StreamKind,
        priority: i32,
        name: &str,
        at: Place,
    ) -> Result<Stream> {
        let runtime = &device.runtime;
        runtime.check()?;
        is_priority(runtime, device.id(), priority)?;
        let core = Core::new(runtime, device.id(), kind, priority, name, Made::Explicit)?;
        let created = Kind::CreateStream { stream: core.id };
        runtime.tell(created, |_| Accesses::new(), at);
        let stream = Stream::new(runtime, core, Origin::Created, None);
        stream.go_on(at);
        Ok(stream)
    }

    fn legacy_of(runtime: &Arc<Runtime>, device: DeviceId) -> Result<Stream> {
        runtime.check()?;
        let mut kept = runtime.device(device).explicit.legacy.lock();
        let core = match &kept.core {
            Some(core) => Arc::clone(core),
            None => {
                let (kind, name, made) = (StreamKind::Legacy, "legacy", Made::Explicit);
                let new = || runtime.live.new_stream(kind, device, name);
                let id = *kept.id.get_or_insert_with(new);
                let core = Core::named(runtime, id, device, kind, 0, name, made)?;
                kept.core = Some(Arc::clone(&core));
                core
            }
        };
        Ok(Stream::new(runtime, core, Origin::Default, None))
    }

    pub(super) fn legacy_of_thread(runtime: &Arc<Runtime>) -> Result<Stream> {
        let device = as_thread(runtime, |thread| thread.current);
        Stream::legacy_of(runtime, device)
    }

    /// Continues the chain of a destroyed stream, if there is one whose work is complete.
    fn go_on(&self, at: Place) {
        let runtime = self.runtime();
        let is_over = |ended: &Ended| {
            let mark = Mark::Recorded(Arc::clone(&ended.end));
            let over = as_thread(runtime, |thread| {
                let mut pen = runtime.live.write();
                runtime.peek(thread, &mark, &mut pen, at)
            });
            over.unwrap_or(false)
        };
        let ended = runtime
            .device(self.device_id())
            .explicit
            .take_ended(is_over);
        if let Some(ended) = ended {
            // If that fails, the stream keeps its own chain.
            let _ = self.own.stream.go_on_as(ended, at);
        }
    }

    fn new(
        runtime: &Arc<Runtime>,
        core: Arc<Core>,
        origin: Origin,
        thread: Option<ThreadId>,
    ) -> Stream {
        let runtime = Arc::clone(runtime);
        Stream {
            own: Arc::new(Own {
                stream: crate::stream::Stream { runtime, core },
                thread,
                origin,
            }),
        }
    }
}

// ------------------------------------------------------------------ order

impl Stream {
    /// `cudaEventRecord`: records the event at the current end of the stream (R5).
    ///
    /// # Errors
    /// If the event belongs to another device, or any error that the driver returns.
    #[track_caller]
    pub fn record(&self, event: &Event) -> Result<()> {
        let at = Location::caller();
        same_machine("record", self.runtime(), &event.runtime)?;
        event.is_recorded_here()?;
        let mut last = event.last.lock();
        let capture = self.own.captured_in();
        let kind = Kind::Record {
            event: event.id(),
            stream: self.id(),
        };
        let runs = capture.is_none();
        self.put(kind, runs, None, at, |clock| last.note(clock, capture))?;
        if runs {
            event.tell_recorded(at);
        }
        Ok(())
    }

    /// `cudaStreamWaitEvent`: makes all work that is submitted to the stream from here on wait for the event's latest
    /// record; without a record it waits for nothing (R6 to R8).
    ///
    /// # Ordering
    /// Does not block the host. If the record is in a capture, the stream joins that capture (R48).
    ///
    /// # Errors
    /// If the stream belongs to the safe API and the event was recorded in a capture, or any error that the driver
    /// returns.
    #[track_caller]
    pub fn wait(&self, event: &Event) -> Result<()> {
        let at = Location::caller();
        same_machine("wait", self.runtime(), &event.runtime)?;
        let last = event.last.lock();
        let joins = last.capture.as_ref().filter(|capture| capture.is_open());
        if joins.is_some() {
            self.refuse_safe("wait")?;
        }
        let kind = Kind::Wait {
            stream: self.id(),
            event: event.id(),
        };
        if let Some(capture) = joins {
            return self.join(kind, capture, at);
        }
        let runs = self.own.captured_in().is_none();
        if runs {
            event.tell_awaited(at);
        }
        self.put(kind, runs, last.point.as_ref(), at, |_| ())
    }

    /// PyTorch's `wait_stream`: makes all work that is submitted to the stream from here on wait for all work
    /// submitted to the other stream so far (R50).
    ///
    /// # Errors
    /// As for [`Stream::record`] and [`Stream::wait`].
    #[track_caller]
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        let at = Location::caller();
        same_machine("wait_stream", self.runtime(), other.runtime())?;
        if other.own.captured_in().is_some() {
            let event = Event {
                runtime: Arc::clone(self.runtime()),
                own: self.runtime().event(other.device_id(), false)?,
                last: Mutex::default(),
                sleeps: false,
                whose: Whose::Ours,
            };
            other.record(&event)?;
            return self.wait(&event);
        }
        other.is_mine()?;
        self.is_mine()?;
        let runs = self.own.captured_in().is_none();
        self.own.stream.link_behind(&other.own.stream, runs, at)
    }

    /// Makes all work that is submitted to the stream from here on wait for an event of the safe API.
    ///
    /// # Errors
    /// Any error that the driver returns, or that the event belongs to another machine.
    #[track_caller]
    pub fn wait_event(&self, event: &crate::event::Event) -> Result<()> {
        self.runtime().check()?;
        self.is_mine()?;
        if self.own.captured_in().is_some() {
            return Err(Error::Invalid {
                call: "wait_event",
                why:
                    "an event of the safe API cannot be part of a capture; wait for it before the capture begins"
                        .into(),
            });
        }
        self.own.stream.wait_event(event)
    }

    /// `cudaStreamQuery`: returns whether all work submitted to the stream so far is complete.
    ///
    /// # Ordering
    /// Does not block the host. A result of `true` orders later calls as [`Stream::synchronize`] does.
    ///
    /// # Errors
    /// The error of work that failed on the device, or that the stream is being captured.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let at = Location::caller();
        self.runtime().check()?;
        self.is_mine()?;
        self.own.stream.query_itself(at)
    }

    /// `cudaStreamSynchronize`: waits until all work submitted to the stream so far is complete. For the legacy
    /// stream that includes all blocking streams (R16).
    ///
    /// # Ordering
    /// Blocks the host. Everything that this thread submits afterwards, to any stream, is ordered after that work.
    ///
    /// # Errors
    /// As for [`Stream::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let at = Location::caller();
        self.runtime().check()?;
        self.is_mine()?;
        refuse_in_host_func("synchronize")?;
        let runtime = self.runtime();
        let kind = Kind::SyncStream { stream: self.id() };
        // During a capture the call is refused, and a refused call is not logged.
        let is_told = self.own.captured_in().is_none();
        let (op, point) = self.own.stream.tell_wait(kind, is_told, at)?;
        runtime.finish(&op, at)?;
        as_thread(runtime, |thread| thread.clock.saw(&point));
        Ok(())
    }
}

// ------------------------------------------------------------------ memory of the safe API

impl Stream {
    /// Lends memory of the safe API for reading by calls and by foreign code on this stream ([`Region::address`]).
    /// The stream is made to wait for all uses that a read has to be ordered after.
    ///
    /// # Safety
    /// Before the safe API writes the memory again, the stream that writes is made to wait for the reads on this
    /// stream; and before the buffer is dropped, [`record_stream`](super::record_stream) is called with this stream,
    /// or the stream on which the buffer was allocated waits for it.
    ///
    /// # Errors
    /// If the memory belongs to another machine or the stream is being captured, or any error that the driver
    /// returns.
    #[track_caller]
    pub unsafe fn lend<'a, T: Pod>(&self, view: View<'a, T>) -> Result<Region<'a>> {
        self.lends(view.touch(), Location::caller())
    }

    /// Like [`Stream::lend`], for writing.
    ///
    /// # Safety
    /// As for [`Stream::lend`], but before every use by the safe API, not only before writes.
    ///
    /// # Errors
    /// As for [`Stream::lend`].
    #[track_caller]
    pub unsafe fn lend_mut<'a, T: Pod>(&self, view: ViewMut<'a, T>) -> Result<Region<'a>> {
        self.lends(view.touch(), Location::caller())
    }

    fn lends<'a>(&self, touch: crate::tracker::Touch<'a>, at: Place) -> Result<Region<'a>> {
        same_machine("lend", self.runtime(), &touch.block.runtime)?;
        self.is_mine()?;
        if self.own.captured_in().is_some() {
            return Err(Error::Invalid {
                call: "lend",
                why: "memory of the safe API cannot be captured, because the graph would use it \
                      without tracking; use memory of the explicit style"
                    .into(),
            });
        }
        self.own.stream.order_after(touch, at)?;
        Ok(Region::lent(
            touch.block,
            touch.start,
            touch.end,
            touch.mode,
        ))
    }
}

// ------------------------------------------------------------------ submitting

pub(super) type Touches<'a> = SmallVec<[(Region<'a>, Mode); 4]>;

impl Stream {
    /// Submits work to the stream.
    #[track_caller]
    pub(super) fn work(
        &self,
        call: &'static str,
        kind: Kind,
        payload: Payload<'_>,
        touches: &[(Region<'_>, Mode)],
        at: Place,
    ) -> Result<()> {
        for (region, mode) in touches {
            same_machine(call, self.runtime(), region.runtime)?;
            region.allows(call, *mode)?;
        }
        let capture = self.own.captured_in();
        if let Some(capture) = &capture {
            capture.takes(call, touches)?;
        }
        let runs = capture.is_none();
        self.submit(kind, payload, runs, at, |pen| accesses(touches, pen))
    }

    /// Submits a call without accesses to the stream. `done` gets the stream's clock after the call.
    #[inline]
    #[track_caller]
    pub(super) fn put(
        &self,
        kind: Kind,
        runs: bool,
        behind: Option<&Point>,
        at: Place,
        done: impl FnOnce(&StreamClock),
    ) -> Result<()> {
        self.is_mine()?;
        self.own.stream.link_bare(kind, runs, behind, at, done)
    }

    /// Submits a call by which the stream joins a capture.
    #[track_caller]
    pub(super) fn join(&self, kind: Kind, capture: &Arc<Capture>, at: Place) -> Result<()> {
        self.is_mine()?;
        let join = || self.core().capture.join(Arc::clone(capture));
        self.own.stream.link_into_capture(kind, at, join)
    }

    /// Submits any call to the stream.
    #[track_caller]
    pub(super) fn submit(
        &self,
        kind: Kind,
        payload: Payload<'_>,
        runs: bool,
        at: Place,
        accesses: impl FnOnce(&mut Pen<'_>) -> Accesses,
    ) -> Result<()> {
        self.is_mine()?;
        let call = Bare {
            kind,
            payload,
            runs,
            at,
        };
        self.own.stream.issue_bare(call, accesses)
    }

    /// Refuses another thread's per-thread default stream.
    #[inline]
    fn is_mine(&self) -> Result<()> {
        match self.own.thread {
            None => Ok(()),
            Some(owner) => self.is_of(owner),
        }
    }

    #[cold]
    fn is_of(&self, owner: ThreadId) -> Result<()> {
        if std::thread::current().id() == owner {
            return Ok(());
        }
        Err(Error::Invalid {
            call: "per_thread",
            why: "the stream is the default stream of another thread; ask for this thread's own"
                .into(),
        })
    }

    /// Returns the end of a stream that only this thread can query; `None` for any other stream.
    pub(super) fn end_of_this_thread(&self, at: Place) -> Result<Option<Mark>> {
        self.is_mine()?;
        if self.own.thread.is_none() {
            return Ok(None);
        }
        let event = self.runtime().event(self.device_id(), false)?;
        let recorded = self.own.stream.record_as(event, at)?;
        Ok(Some(Mark::Recorded(Arc::new(recorded))))
    }

    pub(super) fn refuse_safe(&self, call: &'static str) -> Result<()> {
        if self.own.origin != Origin::Safe {
            return Ok(());
        }
        Err(Error::Invalid {
            call,
            why: "a stream of the safe API cannot be captured, because its calls would not run; \
                  capture a stream of the explicit style"
                .into(),
        })
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.own.stream.runtime
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.own.stream.core
    }

    pub(super) fn id(&self) -> StreamId {
        self.core().id
    }

    pub(super) fn device_id(&self) -> DeviceId {
        self.core().device
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if !matches!(self.origin, Origin::Created | Origin::Adopted) {
            return;
        }
        let crate::stream::Stream { runtime, core } = self.stream.clone();
        let gone = if core.is_noted() {
            // The stream is kept while a mark for it exists; earlier ones that have no more marks are destroyed.
            runtime.device(core.device).explicit.keep_noted(core)
        } else {
            vec![core]
        };
        let at = Location::caller();
        outside_callbacks(move || {
            for core in gone {
                let runtime = Arc::clone(&runtime);
                end(&crate::stream::Stream { core, runtime }, at);
            }
        });
    }
}

/// Destroys a stream without handles.
fn end(stream: &crate::stream::Stream, at: Place) {
    let (runtime, id) = (&stream.runtime, stream.core.id);
    // A stream whose end cannot be recorded keeps its chain.
    let ended = if runtime.has_many_chains() && stream.core.capture.get().is_none() {
        stream.ended(at).ok()
    } else {
        None
    };
    // SAFETY: the last handle is gone, and no mark that refers to the stream is left.
    unsafe { runtime.backend.destroy(Destroy::Stream(id)) };
    let destroyed = Kind::DestroyStream { stream: id };
    runtime.tell(destroyed, |_| Accesses::new(), at);
    let of_device = &runtime.device(stream.core.device).explicit;
    of_device.gone.lock().ended.extend(ended);
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "explicit {:?}", self.own.stream)
    }
}
