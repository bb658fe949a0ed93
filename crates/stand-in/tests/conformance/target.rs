//! What the scenarios run on, and what a scenario is.

use sidestream::device::{Device, Options};
use sidestream::error::Result;

/// A machine with GPUs, real or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The simulated GPU.
    Sim,
    /// The back end for CUDA, on a driver that stands in for NVIDIA's.
    StandIn,
    /// A CUDA driver and its GPUs.
    Cuda,
}

/// Something that has to hold on every target.
pub struct Scenario {
    /// Its module and its sentence.
    pub name: &'static str,
    /// How many devices it takes.
    pub devices: usize,
    /// Panics if it does not hold.
    pub run: Box<dyn Fn(Target) + Send + Sync>,
}

/// A scenario on one device, called as the function is.
pub fn one<F: Fn(Target) + Send + Sync + 'static>(run: F) -> Scenario {
    scenario(1, run)
}

/// A scenario on two devices of one machine.
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
    /// All of them, with the names that stand before those of the trials.
    pub const ALL: [(Target, &str); 3] = [
        (Target::Sim, "sim"),
        (Target::StandIn, "stand_in"),
        (Target::Cuda, "cuda"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let named = Target::ALL.into_iter().find(|(target, _)| *target == self);
        named.map_or("", |(_, name)| name)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Target> {
        let target = Target::ALL.into_iter().find(|(_, known)| *known == name);
        target.map(|(target, _)| target)
    }

    /// The options without which its devices cannot be opened; nobody is told notices.
    pub fn options(self) -> Options {
        let options = Options::new().notice(|_| ());
        match self {
            Target::Sim | Target::Cuda => options,
            // SAFETY: the stand-in has the functions of the driver.
            Target::StandIn => unsafe { options.driver(sidestream_stand_in::library().unwrap()) },
        }
    }

    /// So many devices of one machine.
    pub fn try_open(self, count: usize, options: &Options) -> Result<Vec<Device>> {
        let names: &[&str] = match self {
            Target::Sim => &["sim:h200", "sim:h200"],
            Target::StandIn | Target::Cuda => &["cuda:0", "cuda:1"],
        };
        Device::open_all(&names[..count], options)
    }

    /// A device on a machine of its own.
    pub fn open(self) -> Device {
        self.open_with(&self.options())
    }

    /// The same with options.
    pub fn open_with(self, options: &Options) -> Device {
        self.try_open(1, options).unwrap().remove(0)
    }

    /// Two devices of one machine.
    pub fn open_two(self) -> [Device; 2] {
        let devices = self.try_open(2, &self.options()).unwrap();
        devices.try_into().unwrap()
    }
}

/// A panic that a scenario expects: it unwinds without a word, so that whatever a run prints about panics
/// is about those that nobody expected.
pub fn panic_quietly(message: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(message))
}
