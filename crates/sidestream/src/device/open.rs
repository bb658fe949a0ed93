//! Resolves names of devices, and opens the machine that has these devices.

use std::sync::Arc;

use super::Options;
use crate::backend::Backend;
use crate::cuda;
use crate::engine::Profile;
use crate::error::{Error, Result};
use crate::sim;

/// A parsed device name, whether or not the device exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceName<'a> {
    /// `cuda`, `cuda:1`: a GPU by its ordinal.
    Cuda(u32),
    /// `sim:h200`: a simulated GPU, by the short name of its profile.
    Simulated(&'a str),
    /// `sim:FILE.toml`: a simulated GPU, by the file of its profile.
    File(&'a str),
}

impl DeviceName<'_> {
    /// Parses a name; `None` if no device can have it.
    pub fn of(name: &str) -> Option<DeviceName<'_>> {
        if let Some(model) = name.strip_prefix("sim:") {
            let is_file = model.ends_with(".toml") || model.contains('/');
            return Some(if is_file {
                DeviceName::File(model)
            } else {
                DeviceName::Simulated(model)
            });
        }
        let number = match name.strip_prefix("cuda")? {
            "" => "0",
            rest => rest.strip_prefix(':')?,
        };
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        number
            .parse()
            .ok()
            .filter(|_| is_number)
            .map(DeviceName::Cuda)
    }

    /// Returns the names of the built-in simulated devices: `sim:h200, sim:a100` and so on.
    pub fn built_in() -> String {
        Profile::NAMES.map(|name| format!("sim:{name}")).join(", ")
    }
}

/// Opens the machine with these devices, in this order.
///
/// # Errors
/// [`Error::NoSuchDevice`].
pub(super) fn machine(names: &[&str], options: &Options) -> Result<Arc<dyn Backend>> {
    if names == ["auto"] {
        return auto(options);
    }
    let (mut ordinals, mut profiles) = (Vec::new(), Vec::new());
    for &name in names {
        let profile = match DeviceName::of(name).ok_or_else(|| unknown(name))? {
            DeviceName::Cuda(ordinal) => {
                ordinals.push(ordinal);
                continue;
            }
            DeviceName::Simulated(model) => Profile::named(model).ok_or_else(|| unknown(name))?,
            DeviceName::File(file) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|error| none(name, error.to_string()))?;
                Profile::from_toml(&text).map_err(|error| none(name, error.to_string()))?
            }
        };
        profiles.push((name.to_owned(), profile));
    }
    let asked = || names.join(", ");
    match (ordinals.is_empty(), profiles.is_empty()) {
        (true, true) => Err(none(asked(), "no name was given")),
        (false, false) => {
            let why = "real and simulated devices cannot wait for each other; open them separately";
            Err(none(asked(), why))
        }
        (false, true) => match repeated(&ordinals) {
            Some(ordinal) => Err(none(asked(), format!("cuda:{ordinal} is named twice"))),
            None => match real(&ordinals, options) {
                Ok(machine) => Ok(Arc::new(machine)),
                Err(why) => Err(none(asked(), why.to_string())),
            },
        },
        (true, false) => Ok(simulated(profiles, options)),
    }
}

/// Opens `cuda:0` if it can be used, else the simulated `sim:h200`.
fn auto(options: &Options) -> Result<Arc<dyn Backend>> {
    match real(&[0], options) {
        Ok(machine) => {
            let name = &machine.devices()[0].name;
            (options.settings.notice)(&format!("sidestream: `auto` is {name}"));
            Ok(Arc::new(machine))
        }
        Err(why) => {
            let text = match why {
                cuda::Unusable::Absent(cuda::Absent::NotLoaded(why))
                    if options.driver.is_none() && why != cuda::NotLoaded::Static =>
                {
                    "sidestream: `auto` is the simulated sim:h200; there is no NVIDIA driver"
                        .to_owned()
                }
                why => format!("sidestream: `auto` is the simulated sim:h200; {why}"),
            };
            (options.settings.notice)(&text);
            let profile = ("sim:h200".to_owned(), Profile::h200());
            Ok(simulated(vec![profile], options))
        }
    }
}

fn real(ordinals: &[u32], options: &Options) -> Result<cuda::Machine, cuda::Unusable> {
    let (driver, compiler) = (options.driver.as_deref(), options.compiler.as_deref());
    // SAFETY: a caller that named a file in the options has promised that it is the driver or NVRTC.
    unsafe { cuda::Machine::open(ordinals, driver, compiler) }
}

fn simulated(profiles: Vec<(String, Profile)>, options: &Options) -> Arc<dyn Backend> {
    let machine = sim::Machine::new(profiles, options.schedule, options.settings.memory_bytes);
    Arc::new(machine)
}

fn unknown(name: &str) -> Error {
    let why = format!(
        "there are cuda:0 and so on, {}, sim:FILE.toml for a profile of your own, and auto (alone)",
        DeviceName::built_in()
    );
    none(name, why)
}

fn none(asked: impl Into<String>, why: impl Into<String>) -> Error {
    Error::NoSuchDevice {
        asked: asked.into(),
        why: why.into(),
    }
}

fn repeated(ordinals: &[u32]) -> Option<u32> {
    let earlier = |at: usize| ordinals[..at].contains(&ordinals[at]);
    (0..ordinals.len())
        .find(|&at| earlier(at))
        .map(|at| ordinals[at])
}
