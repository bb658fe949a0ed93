//! Points in streams: events that mark them, and events that also keep the time.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::tracker::{Mark, Recorded, Runtime, wake_when_over};

/// A point in a stream: all that the stream was given before it was recorded.
///
/// [`Stream::record_event`](crate::stream::Stream::record_event) makes it, and it never changes:
/// recording again gives another event. Clones are the same event.
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
    // Before the runtime, which takes the driver's events back when it goes.
    pub(crate) mark: Mark,
    pub(crate) runtime: Arc<Runtime>,
}

impl Event {
    /// Whether all before it is over.
    ///
    /// # Ordering
    /// Does not hold up the host. "Yes" counts as [`Event::synchronize`].
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.runtime.query(&self.mark, Location::caller())
    }

    /// Waits until all before it is over.
    ///
    /// # Ordering
    /// Holds up the host. Whatever this thread submits afterwards, to any stream, is ordered after it.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.runtime.synchronize(&self.mark, Location::caller())
    }

    /// The same for no longer than this; false if the time has passed first. The simulated GPU counts its
    /// own time; for a function on the host that runs it waits up to a second of real time.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn synchronize_for(&self, at_most: Duration) -> Result<bool> {
        let at = Location::caller();
        self.runtime.synchronize_for(&self.mark, at_most, at)
    }

    /// The same for an async task: it is woken when all work before the event is over, or has failed.
    ///
    /// # Ordering
    /// Does not hold up the thread. "Ready" counts as [`Event::synchronize`].
    ///
    /// # Errors
    /// What failed on the device.
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

/// An event that keeps the device's time.
///
/// A timed record costs the device some microseconds; an [`Event`] costs it nothing.
#[derive(Clone)]
pub struct TimedEvent {
    // In this order, as in `Event`.
    pub(crate) recorded: Arc<Recorded>,
    pub(crate) event: Event,
}

impl TimedEvent {
    /// The same point as an event without time.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The time on the device from an earlier event to this one. Waits for both. Zero if this one came
    /// first, which is possible on two streams.
    ///
    /// # Ordering
    /// Holds up the host as [`Event::synchronize`] does.
    ///
    /// # Errors
    /// If they were recorded on two devices, whose clocks cannot be compared, or what failed on the
    /// device.
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
