//! The launches of graphs, as the log of a program that runs has them.

use std::sync::Arc;
use std::sync::Mutex;

use sidestream::device::Device;
use sidestream::log::{Sink, Within};
use sidestream::op::{DeviceId, Kind, Memory, Op, StreamKind, ThreadId};

pub struct Launches(Arc<Mutex<Vec<Op>>>);

struct Ear(Arc<Mutex<Vec<Op>>>);

impl Launches {
    pub fn of(device: &Device) -> Launches {
        let launches = Arc::default();
        device.listen(Box::new(Ear(Arc::clone(&launches))));
        Launches(launches)
    }

    pub fn so_far(&self) -> Vec<Op> {
        self.0.lock().unwrap().clone()
    }
}

impl Sink for Ear {
    fn op(&mut self, op: &Op) {
        if matches!(op.kind, Kind::GraphLaunch { .. }) {
            self.0.lock().unwrap().push(op.clone());
        }
    }

    fn stream(&mut self, _: StreamKind, _: DeviceId, _: &str) {}
    fn event(&mut self, _: bool, _: DeviceId) {}
    fn buffer(&mut self, _: Memory, _: u64, _: Option<Within>, _: &str) {}
    fn thread(&mut self, _: &str) {}
    fn site(&mut self, _: &str) {}
    fn span(&mut self, _: ThreadId, _: Option<&str>) {}
}
