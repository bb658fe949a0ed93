//! Records graph launches in the log of a running program.

use std::sync::Arc;
use std::sync::Mutex;

use sidestream::device::Device;
use sidestream::log::{Record, Sink};
use sidestream::op::{Kind, Op};

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
    fn take(&mut self, record: &Record<'_>) {
        if let Record::Op(op) = record
            && matches!(op.kind, Kind::GraphLaunch { .. })
        {
            self.0.lock().unwrap().push(op.clone().into_owned());
        }
    }
}
