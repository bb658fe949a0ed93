//! Events that can be recorded repeatedly, as in CUDA.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::interprocess::Whose;
use crate::backend::{Create, Destroy};
use crate::device::Device;
use crate::error::Result;
use crate::op::{Accesses, EventId, Kind};
use crate::order::live::{Point, StreamClock};
use crate::tracker::{Capture, OwnEvent, Place, Runtime, as_thread, plain, write};

/// An event with CUDA's semantics. A record marks the current end of a stream and overwrites the previous record;
/// until the first record the event counts as complete, and a wait for it does nothing.
///
/// A wait refers to the latest record at the time of the wait call; later records do not change it.
pub struct Event {
    pub(super) own: OwnEvent,
    /// Locked before the pen and the locks of streams, so that queries and records of one event are logged in the
    /// order in which the driver saw them.
    pub(super) last: Mutex<Last>,
    /// Whether a thread that waits for the event sleeps.
    pub(super) sleeps: bool,
    pub(super) whose: Whose,
    // Dropped after the event, which is destroyed with the machine.
    pub(super) runtime: Arc<Runtime>,
}

/// The latest record of an event.
#[derive(Default)]
pub(super) struct Last {
    pub point: Option<Point>,
    pub capture: Option<Arc<Capture>>,
}

impl Last {
    /// Stores a new record, made in a capture or not.
    #[inline]
    pub(super) fn note(&mut self, clock: &StreamClock, capture: Option<Arc<Capture>>) {
        match (&capture, &mut self.point) {
            (None, Some(point)) => clock.point_into(point),
            (None, point) => *point = Some(clock.point()),
            (Some(_), point) => *point = None,
        }
        self.capture = capture;
    }
}

impl Event {
    /// `cudaEventCreate`, without timing.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Event> {
        Event::create(device, false, false, Location::caller())
    }

    /// Like [`Event::new`], with `cudaEventBlockingSync`: a thread that waits for the event in [`Event::synchronize`]
    /// sleeps until the device wakes it, instead of polling. Its core is free for other threads meanwhile, and the
    /// thread resumes some microseconds later.
    ///
    /// No notice reports that such a wait takes long ([`Options::notice`](crate::device::Options::notice)), since the
    /// sleeping thread does not check the clock. The simulated GPU waits as for any other event.
    ///
    /// ```
    /// use sidestream::device::Device;
    /// use sidestream::explicit::{Event, Stream};
    ///
    /// let device = Device::open("sim:h200")?;
    /// let stream = Stream::non_blocking(&device, "work", 0)?;
    /// let done = Event::blocking(&device)?;
    /// stream.record(&done)?;
    /// done.synchronize()?;
    /// # Ok::<(), sidestream::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn blocking(device: &Device) -> Result<Event> {
        Event::create(device, false, true, Location::caller())
    }

    /// Like [`Event::new`], for an event that also records the device's time.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn timed(device: &Device) -> Result<Event> {
        Event::create(device, true, false, Location::caller())
    }

    fn create(device: &Device, timing: bool, sleeps: bool, at: Place) -> Result<Event> {
        let runtime = &device.runtime;
        runtime.check()?;
        let per_device = runtime.device(device.id());
        // Events whose waits sleep have their own spare list: the runtime records events of the other lists for its own
        // waits.
        let spare = match (timing, sleeps) {
            (_, true) => &per_device.spare_sleeping,
            (true, false) => &per_device.spare_timed,
            (false, false) => &per_device.spare,
        };
        let known = spare.0.lock().pop();
        let id = match known {
            // A spare event has a record, and a new event must not have one.
            Some(id) => {
                // SAFETY: the event was created here, and a spare event has no other user.
                unsafe { runtime.backend.destroy(Destroy::Event(id)) };
                id
            }
            None => runtime.live.new_event(timing, device.id()),
        };
        let device = device.id();
        let create = Create::Event {
            id,
            device,
            timing,
            sleeps,
        };
        // SAFETY: the id is new, or was just destroyed.
        let created = unsafe { runtime.backend.create(create) };
        runtime.seen(created)?;
        runtime.tell(Kind::CreateEvent { event: id }, |_| Accesses::new(), at);
        Ok(Event {
            runtime: Arc::clone(runtime),
            own: OwnEvent {
                id,
                device,
                spare: Arc::clone(spare),
            },
            last: Mutex::default(),
            sleeps,
            whose: Whose::Ours,
        })
    }

    /// `cudaEventQuery`: returns whether the event's latest record is complete.
    ///
    /// # Ordering
    /// Does not block the host. A result of `true` orders later calls as [`Event::synchronize`] does.
    ///
    /// # Errors
    /// The error of work that failed on the device, or that the event was recorded in a capture.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let at = Location::caller();
        self.runtime.check()?;
        let last = self.last.lock();
        let runtime = &self.runtime;
        as_thread(runtime, |thread| {
            let kind = |done| Kind::QueryEvent {
                event: self.id(),
                done,
            };
            let op = plain(thread.id, kind(false), &mut None, at);
            let done = runtime.seen(runtime.backend.query(&op))?;
            if done {
                self.tell_awaited(at);
                let mut pen = runtime.live.write();
                let op = plain(thread.id, kind(true), &mut pen, at);
                write(&mut pen, &op);
                last.point.iter().for_each(|point| thread.clock.saw(point));
            }
            Ok(done)
        })
    }

    /// `cudaEventSynchronize`: waits until the event's latest record is complete.
    ///
    /// # Ordering
    /// Blocks the host. Everything that this thread submits afterwards, to any stream, is ordered after it.
    ///
    /// # Errors
    /// As for [`Event::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let at = Location::caller();
        let runtime = &self.runtime;
        runtime.check()?;
        super::refuse_in_host_func("synchronize")?;
        let (op, point) = {
            let last = self.last.lock();
            self.tell_awaited(at);
            let op = as_thread(runtime, |thread| {
                let mut pen = runtime.live.write();
                let kind = Kind::SyncEvent { event: self.id() };
                let op = plain(thread.id, kind, &mut pen, at);
                // For an event recorded in a capture the call is refused, and a refused call is not logged.
                if last.capture.is_none() {
                    write(&mut pen, &op);
                }
                op
            });
            (op, last.point.clone())
        };
        if self.sleeps {
            // A single wait without a time limit: only the driver's own wait sleeps.
            _ = runtime.seen(runtime.backend.wait(&op, Duration::MAX))?
        } else {
            runtime.finish(&op, at)?
        }
        if let Some(point) = point {
            as_thread(runtime, |thread| thread.clock.saw(&point));
        }
        Ok(())
    }

    /// `cudaEventElapsedTime`, in nanoseconds: returns the time on the device from the record of `earlier` to the
    /// record of this event; negative if this one was first.
    ///
    /// # Ordering
    /// Does not wait: both events have to be complete.
    ///
    /// # Errors
    /// If an event has no timing, was never recorded, is not complete, or belongs to another device.
    #[track_caller]
    pub fn elapsed_ns_since(&self, earlier: &Event) -> Result<f64> {
        let at = Location::caller();
        super::same_machine("elapsed_ns_since", &self.runtime, &earlier.runtime)?;
        self.runtime.check()?;
        self.runtime.elapsed_ns(earlier.id(), self.id(), at)
    }

    pub(super) fn id(&self) -> EventId {
        self.own.id
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.id())
    }
}
