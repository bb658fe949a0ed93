//! Streams: work in one stream runs in the order in which it was put there; different streams run side by side.
//!
//! Every call of the safe API names its stream, and the stream waits by itself for whatever has to be over before the
//! call: the last write of the bytes that it reads, and all uses of the bytes that it writes. Calls return once they
//! are queued, unless their page says that they hold up the host.

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
    /// The name that it was asked for by.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Lower is more urgent.
    pub fn priority(&self) -> i32 {
        self.core.priority
    }

    /// Marks the end of the stream so far.
    ///
    /// # Ordering
    /// The event is over when all that the stream was given before is over.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn record_event(&self) -> Result<Event> {
        let mark = self.mark(Location::caller())?;
        let runtime = Arc::clone(&self.runtime);
        Ok(Event { runtime, mark })
    }

    /// The same, and keeps the device's time there. The device takes some microseconds for it.
    ///
    /// # Errors
    /// What the driver answers.
    #[track_caller]
    pub fn record_timed(&self) -> Result<TimedEvent> {
        self.timed(Location::caller())
    }

    /// Everything that the stream is given from here on waits for the event.
    ///
    /// # Ordering
    /// Does not hold up the host.
    ///
    /// # Errors
    /// What the driver answers, or that the event belongs to another machine.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.same_machine("wait_event", &event.runtime)?;
        self.wait_for(&event.mark, Location::caller())
    }

    /// Everything that the stream is given from here on waits for all that the other one was given so far.
    ///
    /// # Ordering
    /// Does not hold up the host. What the other stream is given later is not waited for.
    ///
    /// # Errors
    /// As [`Stream::wait_event`].
    #[track_caller]
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        self.same_machine("wait_stream", &other.runtime)?;
        self.wait_for_end(other, Location::caller())
    }

    /// Whether all that it was given so far is over.
    ///
    /// # Ordering
    /// Does not hold up the host. "Yes" counts as [`Stream::synchronize`].
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.query_at(Location::caller())
    }

    /// Waits until all that it was given so far is over.
    ///
    /// # Ordering
    /// Holds up the host. Whatever this thread submits afterwards, to any stream, is ordered after it.
    ///
    /// # Errors
    /// What failed on the device.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.finish_at(Location::caller())
    }

    /// The same for no longer than this; false if the time has passed first. The simulated GPU counts
    /// its own time.
    ///
    /// # Errors
    /// What failed on the device.
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
