//! The targets on which the scenarios run, and the scenarios.

use sidestream::device::{Device, Options};
use sidestream::error::Result;

/// A machine with GPUs, real or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The simulated GPU.
    Sim,
    /// The CUDA back end, on the stand-in for NVIDIA's driver.
    StandIn,
    /// A CUDA driver and its GPUs.
    Cuda,
}

/// A property that every target must have.
pub struct Scenario {
    /// The module, and the tested property as a sentence.
    pub name: &'static str,
    /// Number of devices that the scenario needs.
    pub devices: usize,
    /// Panics if the property does not hold.
    pub run: Box<dyn Fn(Target) + Send + Sync>,
}

/// Returns a scenario on one device, with the name of the function.
pub fn one<F: Fn(Target) + Send + Sync + 'static>(run: F) -> Scenario {
    scenario(1, run)
}

/// Returns a scenario on two devices of one machine.
pub fn two<F: Fn(Target) + Send + Sync + 'static>(run: F) -> Scenario {
    scenario(2, run)
}

fn scenario<F: Fn(Target) + Send + Sync + 'static>(devices: usize, run: F) -> Scenario {
    let path = std::any::type_name::<F>();
    Scenario {
        name: path.split_once("::").map_or(path, |(_, name)| name),
        devices,
        run: Box::new(run),
    }
}

impl Target {
    /// All targets, with the prefixes of their trials' names.
    pub const ALL: [(Target, &str); 3] = [
        (Target::Sim, "sim"),
        (Target::StandIn, "stand_in"),
        (Target::Cuda, "cuda"),
    ];

    /// Returns the name of the target.
    pub fn name(self) -> &'static str {
        let named = Target::ALL.into_iter().find(|(target, _)| *target == self);
        named.map_or("", |(_, name)| name)
    }

    /// Returns the target with this name.
    pub fn named(name: &str) -> Option<Target> {
        let target = Target::ALL.into_iter().find(|(_, known)| *known == name);
        target.map(|(target, _)| target)
    }

    /// Returns the options without which its devices cannot be opened; notices are discarded.
    pub fn options(self) -> Options {
        let options = Options::new().notice(|_| ());
        match self {
            Target::Sim | Target::Cuda => options,
            // SAFETY: the stand-in has the functions of the driver.
            Target::StandIn => unsafe { options.driver(sidestream_stand_in::library().unwrap()) },
        }
    }

    /// Opens this many devices of one machine.
    pub fn try_open(self, count: usize, options: &Options) -> Result<Vec<Device>> {
        let names: &[&str] = match self {
            Target::Sim => &["sim:h200", "sim:h200"],
            Target::StandIn | Target::Cuda => &["cuda:0", "cuda:1"],
        };
        Device::open_all(&names[..count], options)
    }

    /// Opens a device on a machine of its own.
    pub fn open(self) -> Device {
        self.open_with(&self.options())
    }

    /// Opens a device with options, on a machine of its own.
    pub fn open_with(self, options: &Options) -> Device {
        self.try_open(1, options).unwrap().remove(0)
    }

    /// Opens two devices of one machine.
    pub fn open_two(self) -> [Device; 2] {
        let devices = self.try_open(2, &self.options()).unwrap();
        devices.try_into().unwrap()
    }
}

/// Panics where a scenario expects it: it unwinds without printing, so that every panic message in the output is an
/// unexpected one.
pub fn panic_quietly(message: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(message))
}
