//! Streams: work in one stream runs in the order in which it was enqueued; work in different streams may run
//! concurrently.
//!
//! Every call of the safe API names its stream. The stream waits by itself for the work that the call depends on: the
//! last write of the bytes that the call reads, and all uses of the bytes that it writes. Calls return once the work
//! is enqueued, unless their documentation says that they block the host.

mod copy;
mod launch;
mod plan;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::{Event, TimedEvent};
use crate::tracker::{Mark, Place, Runtime};

pub(crate) use copy::size_of_all;
pub(crate) use launch::not_empty;
pub use plan::Rows;
pub(crate) use plan::{CopyPlan, FillPlan};

pub use crate::tracker::Stream;

impl Stream {
    /// Returns the name with which the stream was opened.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Returns the priority; lower is more urgent.
    pub fn priority(&self) -> i32 {
        self.core.priority
    }

    /// Records an event at the current end of the stream.
    ///
    /// # Ordering
    /// The event is complete when all work that was submitted to the stream before it is complete.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn record_event(&self) -> Result<Event> {
        let mark = self.mark(Location::caller())?;
        let runtime = Arc::clone(&self.runtime);
        Ok(Event { runtime, mark })
    }

    /// Like [`Stream::record_event`], but also records the device's time. That costs the device some microseconds.
    ///
    /// # Errors
    /// Any error that the driver returns.
    #[track_caller]
    pub fn record_timed(&self) -> Result<TimedEvent> {
        self.timed(Location::caller())
    }

    /// Makes all work that is submitted to the stream from here on wait for the event.
    ///
    /// # Ordering
    /// Does not block the host.
    ///
    /// # Errors
    /// Any error that the driver returns, or that the event belongs to another machine.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.same_machine("wait_event", &event.runtime)?;
        self.wait_for(&event.mark, Location::caller())
    }

    /// Makes all work that is submitted to the stream from here on wait for all work submitted to the other stream so
    /// far.
    ///
    /// # Ordering
    /// Does not block the host. Work that the other stream is given later is not waited for.
    ///
    /// # Errors
    /// As for [`Stream::wait_event`].
    #[track_caller]
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        self.same_machine("wait_stream", &other.runtime)?;
        self.wait_for_end(other, Location::caller())
    }

    /// Returns whether all work submitted to the stream so far is complete.
    ///
    /// # Ordering
    /// Does not block the host. A result of `true` orders later calls as [`Stream::synchronize`] does.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.query_at(Location::caller())
    }

    /// Waits until all work submitted to the stream so far is complete.
    ///
    /// # Ordering
    /// Blocks the host. Everything that this thread submits afterwards, to any stream, is ordered after that work.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.finish_at(Location::caller())
    }

    /// Like [`Stream::synchronize`], but waits no longer than `at_most`; returns false if that time passes first. The
    /// simulated GPU counts virtual time.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    #[track_caller]
    pub fn synchronize_for(&self, at_most: Duration) -> Result<bool> {
        let at = Location::caller();
        let mark = self.mark(at)?;
        self.runtime.synchronize_for(&mark, at_most, at)
    }

    pub(crate) fn same_machine(&self, call: &'static str, other: &Arc<Runtime>) -> Result<()> {
        if Arc::ptr_eq(&self.runtime, other) {
            return Ok(());
        }
        Err(Error::Invalid {
            call,
            why:
                "the two belong to different machines, which cannot wait for each other; open both \
                  devices together with `Device::open_all`"
                    .into(),
        })
    }

    fn timed(&self, at: Place) -> Result<TimedEvent> {
        self.runtime.check()?;
        let event = self.runtime.event(self.core.device, true)?;
        let recorded = Arc::new(self.record_as(event, at)?);
        let event = Event {
            runtime: Arc::clone(&self.runtime),
            mark: Mark::Recorded(Arc::clone(&recorded)),
        };
        Ok(TimedEvent { event, recorded })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?}, {:?})", self.core.id, self.core.name())
    }
}
