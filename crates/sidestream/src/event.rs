//! Points in streams: events that mark a point, and events that also record the device's time there.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::tracker::{Mark, Recorded, Runtime, wake_when_over};

/// A point in a stream: it covers all work that was submitted to the stream before it was recorded.
///
/// [`Stream::record_event`](crate::stream::Stream::record_event) makes it, and it never changes: recording again
/// returns another event. Clones are the same event.
///
/// ```
/// use sidestream::device::Device;
///
/// let device = Device::open("sim:h200")?;
/// let (upload, compute) = (device.stream("upload")?, device.stream("compute")?);
/// let event = upload.record_event()?;
/// compute.wait_event(&event)?;
/// event.synchronize()?;
/// assert!(event.query()?);
/// # Ok::<(), sidestream::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Event {
    // `mark` is dropped before `runtime`, which destroys the driver's events when it is dropped.
    pub(crate) mark: Mark,
    pub(crate) runtime: Arc<Runtime>,
}

impl Event {
    /// Returns whether all work before the event is complete.
    ///
    /// # Ordering
    /// Does not block the host. A result of `true` orders later calls as [`Event::synchronize`] does.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.runtime.query(&self.mark, Location::caller())
    }

    /// Waits until all work before the event is complete.
    ///
    /// # Ordering
    /// Blocks the host. Everything that this thread submits afterwards, to any stream, is ordered after the event.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.runtime.synchronize(&self.mark, Location::caller())
    }

    /// Like [`Event::synchronize`], but waits no longer than `at_most`; returns false if that time passes first. The
    /// simulated GPU counts virtual time; for a function that is running on the host it waits up to a second of real
    /// time.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn synchronize_for(&self, at_most: Duration) -> Result<bool> {
        let at = Location::caller();
        self.runtime.synchronize_for(&self.mark, at_most, at)
    }

    /// Like [`Event::synchronize`], but for an async task, which is woken when all work before the event is complete
    /// or has failed.
    ///
    /// # Ordering
    /// Does not block the thread. `Ready` orders later calls as [`Event::synchronize`] does.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.query() {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => {
                wake_when_over(&self.runtime, &self.mark, context.waker());
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?})", self.mark.epoch())
    }
}

/// An event that also records the device's time.
///
/// A timed record costs the device some microseconds; an [`Event`] costs it nothing.
#[derive(Clone)]
pub struct TimedEvent {
    // The drop order matters, as in [`Event`].
    pub(crate) recorded: Arc<Recorded>,
    pub(crate) event: Event,
}

impl TimedEvent {
    /// Returns the same point as an event without timing.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the time on the device from `earlier` to this event, after waiting for both. Returns zero if this
    /// event came first, which is possible on two streams.
    ///
    /// # Ordering
    /// Blocks the host as [`Event::synchronize`] does.
    ///
    /// # Errors
    /// If the events were recorded on two devices, whose clocks cannot be compared; or the error of work that failed
    /// on the device.
    #[track_caller]
    pub fn elapsed_since(&self, earlier: &TimedEvent) -> Result<Duration> {
        let at = Location::caller();
        if !Arc::ptr_eq(&self.event.runtime, &earlier.event.runtime)
            || self.recorded.event.device != earlier.recorded.event.device
        {
            return Err(Error::Invalid {
                call: "elapsed_since",
                why: "the events were recorded on two devices, whose clocks cannot be compared"
                    .into(),
            });
        }
        let runtime = &self.event.runtime;
        runtime.synchronize(&earlier.event.mark, at)?;
        runtime.synchronize(&self.event.mark, at)?;
        let (from, to) = (earlier.recorded.event.id, self.recorded.event.id);
        let ns = runtime.elapsed_ns(from, to, at)?;
        Ok(Duration::from_nanos(ns.max(0.0).round() as u64))
    }
}

impl fmt::Debug for TimedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timed{:?}", self.event)
    }
}
