//! Events that are recorded again and again, as in CUDA.

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

/// An event as CUDA has it. A record takes what a stream was given so far, and overwrites what the
/// event had before; until the first one it stands for nothing, and every wait for it is over.
///
/// A wait that was placed keeps to the record that there was when it was placed.
pub struct Event {
    pub(super) own: OwnEvent,
    /// Taken before the pen and the locks of streams, so that questions and records of one event
    /// are in the log as the driver saw them.
    pub(super) last: Mutex<Last>,
    /// Whether a thread that waits for it sleeps.
    pub(super) sleeps: bool,
    pub(super) whose: Whose,
    // After the event, which is given back when the machine goes.
    pub(super) runtime: Arc<Runtime>,
}

/// What the event was last recorded in.
#[derive(Default)]
pub(super) struct Last {
    pub point: Option<Point>,
    pub capture: Option<Arc<Capture>>,
}

impl Last {
    /// A record was made, in a capture or not.
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
    /// What the driver answers.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Event> {
        Event::create(device, false, false, Location::caller())
    }

    /// The same with `cudaEventBlockingSync`: a thread that waits for it in [`Event::synchronize`]
    /// sleeps until the device wakes it, instead of asking again and again. That leaves its core to
    /// others, and the thread goes on some microseconds later.
    ///
    /// No notice says that such a wait takes long ([`Options::notice`](crate::device::Options::notice)),
    /// since nobody looks at the clock. The simulated GPU waits as for any other event.
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
    /// What the driver answers.
    #[track_caller]
    pub fn blocking(device: &Device) -> Result<Event> {
        Event::create(device, false, true, Location::caller())
    }

    /// The same for an event that also keeps the device's time.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn timed(device: &Device) -> Result<Event> {
        Event::create(device, true, false, Location::caller())
    }

    fn create(device: &Device, timing: bool, sleeps: bool, at: Place) -> Result<Event> {
        let runtime = &device.runtime;
        runtime.check()?;
        let per_device = runtime.device(device.id());
        // Those that sleep are kept apart: the runtime's own waits take any of the others.
        let spare = match (timing, sleeps) {
            (_, true) => &per_device.spare_sleeping,
            (true, false) => &per_device.spare_timed,
            (false, false) => &per_device.spare,
        };
        let known = spare.0.lock().pop();
        let id = match known {
            // A spare one was recorded, and this one shall not have been.
            Some(id) => {
                // SAFETY: it was made here, and nobody has a spare one.
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

    /// `cudaEventQuery`: whether its last record is over.
    ///
    /// # Ordering
    /// Does not hold up the host. "Yes" counts as [`Event::synchronize`].
    ///
    /// # Errors
    /// What failed on the device, or that it was recorded in a capture.
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

    /// `cudaEventSynchronize`: waits until its last record is over.
    ///
    /// # Ordering
    /// Holds up the host. Whatever this thread submits afterwards, to any stream, is ordered after it.
    ///
    /// # Errors
    /// As [`Event::query`].
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
                // In a capture it is refused, and what is refused did not happen.
                if last.capture.is_none() {
                    write(&mut pen, &op);
                }
                op
            });
            (op, last.point.clone())
        };
        match self.sleeps {
            // At once and without end: the driver's own wait is the one that sleeps.
            true => _ = runtime.seen(runtime.backend.wait(&op, Duration::MAX))?,
            false => runtime.finish(&op, at)?,
        }
        if let Some(point) = point {
            as_thread(runtime, |thread| thread.clock.saw(&point));
        }
        Ok(())
    }

    /// `cudaEventElapsedTime`, in nanoseconds: the time on the device from the record of an earlier
    /// timed event to the record of this one; less than nothing if that one was later.
    ///
    /// # Ordering
    /// Waits for nothing: both have to be known to be over.
    ///
    /// # Errors
    /// If one keeps no time, was never recorded, is not over, or belongs to another device.
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
