//! The times at which operations ran, kept while a sink wants them.
//!
//! Each operation gets a timed event before it and one after it. On an H200 such a record takes the device 2 µs, so a
//! timed run is slower than an untimed one.
//!
//! The driver returns the time between two events in milliseconds, as a float, which is exact to half a microsecond
//! only over some seconds. So times are measured from a recent event: when an operation ended long after the current
//! reference event, its end event becomes the next reference.

use std::time::Instant;

use super::driver::{CuEvent, Driver, SUCCESS};
use crate::backend::Done;
use crate::op::{DeviceId, OpId};

/// The measurements of all devices.
pub(super) struct Timing {
    /// The time zero of all times.
    began: Instant,
    devices: Vec<Clock>,
    pending: Vec<Pending>,
    /// Times that are complete.
    done: Vec<Done>,
}

/// The clock of a device.
struct Clock {
    /// The reference event, which is complete, and its time.
    from: Option<(CuEvent, f64)>,
    spare: Vec<CuEvent>,
}

struct Pending {
    op: OpId,
    device: DeviceId,
    call_ns: (u64, u64),
    start: CuEvent,
    end: CuEvent,
}

/// The age at which the reference event is replaced.
const OLD_NS: f64 = 1e8;

impl Timing {
    pub(super) fn new(devices: usize) -> Timing {
        let clock = || Clock {
            from: None,
            spare: Vec::new(),
        };
        Timing {
            began: Instant::now(),
            devices: std::iter::repeat_with(clock).take(devices).collect(),
            pending: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Whether times of this device can be computed.
    pub(super) fn has_clock(&self, device: DeviceId) -> bool {
        self.devices[device.0 as usize].from.is_some()
    }

    /// Measures a device's times from this event, which has just completed.
    pub(super) fn start_clock(&mut self, device: DeviceId, event: CuEvent) {
        let now_ns = self.now_ns() as f64;
        self.devices[device.0 as usize].from = Some((event, now_ns));
    }

    /// Returns a timed event to be recorded. `make` creates one.
    pub(super) fn event<E>(
        &mut self,
        device: DeviceId,
        make: impl FnOnce() -> Result<CuEvent, E>,
    ) -> Result<CuEvent, E> {
        match self.devices[device.0 as usize].spare.pop() {
            Some(event) => Ok(event),
            None => make(),
        }
    }

    /// Takes back an event that was not recorded.
    pub(super) fn unused(&mut self, device: DeviceId, event: CuEvent) {
        self.devices[device.0 as usize].spare.push(event);
    }

    /// Notes an operation between its two events.
    pub(super) fn note(
        &mut self,
        op: OpId,
        device: DeviceId,
        call_ns: (u64, u64),
        (start, end): (CuEvent, CuEvent),
    ) {
        self.pending.push(Pending {
            op,
            device,
            call_ns,
            start,
            end,
        });
    }

    /// Notes a call that concerns the host alone.
    pub(super) fn note_call(&mut self, op: OpId, call_ns: (u64, u64)) {
        self.done.push(Done {
            op,
            call_ns: Some(call_ns),
            work_ns: None,
        });
    }

    /// Appends the times of operations that are complete by now.
    pub(super) fn take(&mut self, driver: &Driver, into: &mut Vec<Done>) {
        into.append(&mut self.done);
        let pending = std::mem::take(&mut self.pending);
        for pending in pending {
            // SAFETY: the event is ours and was recorded.
            if unsafe { (driver.cuEventQuery)(pending.end) } != SUCCESS {
                self.pending.push(pending);
                continue;
            }
            let work_ns = self.devices[pending.device.0 as usize].times(driver, &pending);
            into.push(Done {
                op: pending.op,
                call_ns: Some(pending.call_ns),
                work_ns,
            });
        }
    }

    /// Destroys all events, when no work is left.
    pub(super) fn close(self, driver: &Driver) {
        let pending = self.pending.iter().flat_map(|p| [p.start, p.end]);
        let kept = self.devices.iter();
        let kept =
            kept.flat_map(|clock| clock.spare.iter().copied().chain(clock.from.map(|f| f.0)));
        for event in pending.chain(kept) {
            // SAFETY: the event was created here, and is not used afterwards.
            unsafe { (driver.cuEventDestroy_v2)(event) };
        }
    }
}

impl Clock {
    /// Returns the start and end of an operation. Its events become spare, or its end becomes the next reference.
    fn times(&mut self, driver: &Driver, pending: &Pending) -> Option<(u64, u64)> {
        let (from, from_ns) = self.from?;
        let between = |event: CuEvent| -> Option<f64> {
            let mut ms = 0f32;
            // SAFETY: both events are of this device and were recorded; one number is written.
            let code = unsafe { (driver.cuEventElapsedTime)(&mut ms, from, event) };
            (code == SUCCESS).then(|| from_ns + f64::from(ms) * 1e6)
        };
        let times = between(pending.start).zip(between(pending.end));
        self.spare.push(pending.start);
        match times {
            Some((_, end_ns)) if end_ns - from_ns > OLD_NS => {
                self.spare.push(from);
                self.from = Some((pending.end, end_ns));
            }
            _ => self.spare.push(pending.end),
        }
        let (start_ns, end_ns) = times?;
        let start_ns = start_ns.max(0.0);
        Some((start_ns as u64, end_ns.max(start_ns) as u64))
    }
}
