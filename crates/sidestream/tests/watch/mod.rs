//! The checker, listening to a program that runs.

use std::sync::Arc;
use std::sync::Mutex;

use sidestream::check::{BufferDecl, Checker, Place};
use sidestream::device::Device;
use sidestream::log::{Sink, Within};
use sidestream::op::{DeviceId, Kind, Memory, Op, StreamKind, ThreadId};

pub struct Watch(Arc<Mutex<Seen>>);

struct Seen {
    checker: Checker,
    launches: Vec<Op>,
}

struct Ear(Arc<Mutex<Seen>>);

impl Watch {
    pub fn over(device: &Device) -> Watch {
        let seen = Seen {
            checker: Checker::new(),
            launches: Vec::new(),
        };
        let seen = Arc::new(Mutex::new(seen));
        device.listen(Box::new(Ear(Arc::clone(&seen))));
        Watch(seen)
    }

    /// The launches of graphs so far.
    pub fn launches(&self) -> Vec<Op> {
        self.0.lock().unwrap().launches.clone()
    }

    #[track_caller]
    pub fn assert_silent(&self, what: &str) {
        let report = self.0.lock().unwrap().checker.report();
        assert!(report.error.is_none(), "{what}: {:?}", report.error);
        assert!(report.races.is_empty(), "{what}: {:?}", report.races);
    }
}

impl Ear {
    fn tell(&self, what: impl FnOnce(&mut Checker)) {
        what(&mut self.0.lock().unwrap().checker);
    }
}

impl Sink for Ear {
    fn stream(&mut self, kind: StreamKind, device: DeviceId, _: &str) {
        self.tell(|checker| {
            checker.order_mut().add_stream(kind, device);
        });
    }

    fn event(&mut self, timing: bool, device: DeviceId) {
        self.tell(|checker| {
            checker.order_mut().add_event(timing, Some(device));
        });
    }

    fn buffer(&mut self, memory: Memory, bytes: u64, within: Option<Within>, _: &str) {
        let place = match within {
            Some(Within { buffer, start }) => Place::Within { buffer, start },
            None => Place::Fresh,
        };
        self.tell(|checker| {
            checker.add_buffer(BufferDecl {
                memory,
                bytes,
                place,
            });
        });
    }

    fn thread(&mut self, _: &str) {}
    fn site(&mut self, _: &str) {}
    fn span(&mut self, _: ThreadId, _: Option<&str>) {}

    fn op(&mut self, op: &Op) {
        let mut seen = self.0.lock().unwrap();
        let _ = seen.checker.push(op);
        if matches!(op.kind, Kind::GraphLaunch { .. }) {
            seen.launches.push(op.clone());
        }
    }
}
