//! The runtime's side of a measurement.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sidestream::device::{Device, Options};
use sidestream::engine::Profile;
use sidestream::sim::{Machine, Schedule};

use super::raw::Gpu;
use super::rounds::Clock;
use crate::failure::Failure;

/// A device of the runtime, and its clock.
pub struct Own {
    pub device: Device,
    pub clock: Clock,
    /// The number of multiprocessors.
    pub sms: u32,
}

impl Own {
    /// Opens a real device, the one that the driver's side uses.
    pub fn cuda(gpu: &Gpu, number: u32, driver: Option<&Path>) -> Result<Own, Failure> {
        let options = quiet();
        let options = match driver {
            // SAFETY: the user of the command names the driver.
            Some(file) => unsafe { options.driver(file) },
            None => options,
        };
        Ok(Own {
            device: Device::open_with(&format!("cuda:{number}"), &options)?,
            clock: Clock::Host(Instant::now()),
            sms: gpu.sms,
        })
    }

    /// Opens a simulated device of which only times are simulated.
    pub fn simulated(profile: Profile) -> Own {
        let sms = profile.sms as u32;
        let machine = machine(profile);
        machine.times_only();
        Own {
            device: device(&machine),
            clock: Clock::Simulated(machine),
            sms,
        }
    }
}

/// Returns a machine with one such device.
pub fn machine(profile: Profile) -> Arc<Machine> {
    let devices = vec![(profile.name.clone(), profile)];
    Arc::new(Machine::new(devices, Schedule::InOrder, None))
}

/// Returns the device of a machine that has one.
pub fn device(machine: &Arc<Machine>) -> Device {
    Device::on(Arc::clone(machine) as _, &quiet()).remove(0)
}

/// Returns options without notices: a long wait is expected in a long measurement, or is simulated time.
fn quiet() -> Options {
    Options::new().notice(|_| ())
}
