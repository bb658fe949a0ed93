//! When operations ran, while somebody wants to know.
//!
//! Each operation gets a timed event before and one behind it. On an H200 such a record takes the
//! device 2 µs, so a run that is timed is slower than one that is not.
//!
//! The driver gives the time between two events in milliseconds, as a float: it is exact to half a
//! microsecond over some seconds only. So times are counted from an event that is never old: when
//! an operation is over whose end is far behind, its end becomes the next one that is counted from.

use std::time::Instant;

use super::driver::{CuEvent, Driver, SUCCESS};
use crate::backend::Done;
use crate::op::{DeviceId, OpId};

/// What is measured, for all devices.
pub(super) struct Timing {
    /// Zero on the axis of all times.
    began: Instant,
    devices: Vec<Clock>,
    pending: Vec<Pending>,
    /// What needs nothing more.
    done: Vec<Done>,
}

/// The clock of a device.
struct Clock {
    /// An event that is over, and its time on the axis.
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

/// After so long the event that is counted from is replaced.
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

    /// Whether times of this device can be told.
    pub(super) fn has_clock(&self, device: DeviceId) -> bool {
        self.devices[device.0 as usize].from.is_some()
    }

    /// Counts a device's times from this event, which is over just now.
    pub(super) fn start_clock(&mut self, device: DeviceId, event: CuEvent) {
        let now_ns = self.now_ns() as f64;
        self.devices[device.0 as usize].from = Some((event, now_ns));
    }

    /// A timed event to be recorded. `make` makes one.
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

    /// An event that was not recorded after all.
    pub(super) fn unused(&mut self, device: DeviceId, event: CuEvent) {
        self.devices[device.0 as usize].spare.push(event);
    }

    /// An operation stands between its two events.
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

    /// A call that is the host's alone.
    pub(super) fn note_call(&mut self, op: OpId, call_ns: (u64, u64)) {
        self.done.push(Done {
            op,
            call_ns: Some(call_ns),
            work_ns: None,
        });
    }

    /// What is over by now.
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

    /// Gives all events back. Nothing runs any more.
    pub(super) fn close(self, driver: &Driver) {
        let pending = self.pending.iter().flat_map(|p| [p.start, p.end]);
        let kept = self.devices.iter();
        let kept =
            kept.flat_map(|clock| clock.spare.iter().copied().chain(clock.from.map(|f| f.0)));
        for event in pending.chain(kept) {
            // SAFETY: it is ours, and nobody asks about it again.
            unsafe { (driver.cuEventDestroy_v2)(event) };
        }
    }
}

impl Clock {
    /// Start and end of an operation on the axis. Its events go back, or one becomes the next to be
    /// counted from.
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
