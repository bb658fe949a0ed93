//! Whether work is complete, and when it ran.

#![deny(clippy::wildcard_enum_match_arm)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Machine;
use crate::backend::{BesideCaptures, Payload};
use crate::cuda::driver::STREAM_NON_BLOCKING;
use crate::cuda::streams::{Event, Stream};
use crate::cuda::timing::Timing;
use crate::cuda::wait;
use crate::error::{Error, Result};
use crate::op::{Class, DeviceId, Op, OpId, Until};

/// The object of a query or a wait.
pub(super) enum Asked<'a> {
    Event(&'a Event),
    Stream(&'a Stream),
    Device(DeviceId),
}

impl Machine {
    pub(super) fn asked(&self, op: &Op) -> Result<Asked<'_>> {
        let (Class::Sync(until) | Class::Query(until)) = op.kind.class() else {
            return Err(Error::Invalid {
                call: "wait",
                why: format!("{:?} is not a query or a wait", op.kind),
            });
        };
        Ok(match until {
            Until::Event(event) => Asked::Event(self.events.at(event.0)),
            Until::Stream(stream) => Asked::Stream(self.streams.at(stream.0)),
            Until::Device(device) => {
                Asked::Device(device.unwrap_or_else(|| self.current_device(op.thread)))
            }
        })
    }

    /// Returns whether the work is complete.
    #[inline]
    pub(super) fn ask(&self, asked: &Asked<'_>) -> Result<bool> {
        let driver = self.driver();
        match asked {
            Asked::Event(event) => {
                let (stream, given) = event.recorded();
                // SAFETY: the event is open, as the front end promises.
                let code = unsafe { (driver.cuEventQuery)(event.handle()) };
                let over = self.is_over("query", event.device(), code)?;
                if over {
                    self.streams.at(stream.0).is_done_up_to(given);
                }
                Ok(over)
            }
            Asked::Stream(stream) => {
                let given = stream.given();
                let _current = self.for_default(stream);
                // SAFETY: as above.
                let code = unsafe { (driver.cuStreamQuery)(stream.handle()) };
                let over = self.is_over("query", stream.device(), code)?;
                if over {
                    stream.is_done_up_to(given);
                }
                Ok(over)
            }
            Asked::Device(device) => {
                let open = self.streams.all().filter(|stream| stream.is_open());
                for stream in open.filter(|stream| stream.device() == *device) {
                    if !self.ask(&Asked::Stream(stream))? {
                        return Ok(false);
                    }
                }
                // A wait for the whole context also covers work that other libraries have submitted.
                let _current = self.on(*device);
                // SAFETY: takes no arguments.
                let code = unsafe { (driver.cuCtxSynchronize)() };
                self.answer("synchronize", *device, code).map(|()| true)
            }
        }
    }

    /// Returns whether a stream's work is complete, without invalidating a capture; `None` if the stream may be captured or
    /// the driver gives no answer.
    pub(super) fn ask_beside(&self, stream: &Stream) -> Option<bool> {
        let _beside = BesideCaptures::on(self);
        if self.may_be_captured(stream) {
            return None;
        }
        self.ask(&Asked::Stream(stream)).ok()
    }

    /// Waits for an event in the driver, where the thread sleeps.
    pub(super) fn sleep(&self, event: &Event) -> Result<bool> {
        let (stream, given) = event.recorded();
        // SAFETY: the event is open.
        let code = unsafe { (self.driver().cuEventSynchronize)(event.handle()) };
        self.answer("synchronize", event.device(), code)?;
        self.streams.at(stream.0).is_done_up_to(given);
        Ok(true)
    }

    pub(super) fn question(&self, op: &Op) -> Result<bool> {
        self.bind();
        let asked = self.asked(op)?;
        self.ask(&asked)
    }
}

// ------------------------------------------------------------------ times

impl Machine {
    /// Submits an operation to its stream between two timed events.
    #[cold]
    pub(super) fn put_timed(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        let work = op.kind.stream().map(|stream| self.streams.at(stream.0));
        let is_work = op.kind.class().is_work();
        let stream = work.filter(|stream| is_work && !self.is_capturing(stream));
        let mut timing = self.timing.lock();
        let Some(timing) = &mut *timing else {
            return self.put(op, payload);
        };
        let Some(stream) = stream else {
            let began_ns = timing.now_ns();
            self.put(op, payload)?;
            timing.note_call(op.id, (began_ns, timing.now_ns()));
            return Ok(());
        };
        let device = stream.device();
        self.start_clock(timing, device)?;
        let mut event = || timing.event(device, || self.timed_event(device));
        let (start, end) = (event()?, event()?);
        let began_ns = timing.now_ns();
        let put = (self.record_raw(start, stream)).and_then(|()| self.put(op, payload));
        let call_ns = (began_ns, timing.now_ns());
        let ended = put.and_then(|()| self.behind_work(self.record_raw(end, stream)));
        match ended {
            Ok(true) => timing.note(op.id, device, call_ns, (start, end)),
            // The operation's start and end were not both recorded, so it has no time.
            Ok(false) | Err(_) => {
                timing.unused(device, start);
                timing.unused(device, end);
            }
        }
        if let Ok(false) = ended {
            timing.note_call(op.id, call_ns);
        }
        ended.map(|_| ())
    }

    /// Starts a device's clock with an event that is recorded in a stream without work, and so completes at once.
    pub(super) fn start_clock(&self, timing: &mut Timing, device: DeviceId) -> Result<()> {
        if timing.has_clock(device) {
            return Ok(());
        }
        let driver = self.driver();
        let event = self.timed_event(device)?;
        let _current = self.on(device);
        let mut empty = 0;
        // SAFETY: creates a stream and destroys it when the record is complete.
        unsafe {
            let made = (driver.cuStreamCreateWithPriority)(&mut empty, STREAM_NON_BLOCKING, 0);
            self.answer("stream", device, made)?;
            let recorded = (driver.cuEventRecord)(event, empty);
            let over = wait::until(Duration::MAX, || {
                self.is_over("query", device, (driver.cuEventQuery)(event))
            });
            (driver.cuStreamDestroy_v2)(empty);
            self.answer("record", device, recorded)?;
            over?;
        }
        timing.start_clock(device, event);
        Ok(())
    }

    pub(super) fn timed_event(&self, device: DeviceId) -> Result<u64> {
        let _current = self.on(device);
        let mut event = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.driver().cuEventCreate)(&mut event, 0) };
        self.answer("event", device, code).map(|()| event)
    }

    pub(super) fn record_raw(&self, event: u64, stream: &Stream) -> Result<()> {
        let _current = self.for_default(stream);
        // SAFETY: both are open.
        let code = unsafe { (self.driver().cuEventRecord)(event, stream.handle()) };
        self.answer("record", stream.device(), code)
    }

    /// Records how long a call on the host took.
    pub(super) fn timed_call<R>(&self, op: OpId, call: impl FnOnce() -> R) -> R {
        if !self.keeps_times.load(Relaxed) {
            return call();
        }
        let now_ns = || self.timing.lock().as_ref().map(Timing::now_ns);
        let began_ns = now_ns();
        let result = call();
        let mut timing = self.timing.lock();
        if let (Some(timing), Some(began_ns)) = (&mut *timing, began_ns) {
            timing.note_call(op, (began_ns, timing.now_ns()));
        }
        result
    }
}
