//! From the names of devices to the machine that has them.

use std::sync::Arc;

use super::Options;
use crate::backend::Backend;
use crate::cuda;
use crate::engine::Profile;
use crate::error::{Error, Result};
use crate::sim;

/// What a name stands for.
enum Named {
    Cuda(u32),
    Simulated(String, Box<Profile>),
}

/// The machine with these devices, in this order.
///
/// # Errors
/// [`Error::NoSuchDevice`].
pub(super) fn machine(names: &[&str], options: &Options) -> Result<Arc<dyn Backend>> {
    if names == ["auto"] {
        return auto(options);
    }
    let named = names.iter().map(|name| named(name));
    let (mut ordinals, mut profiles) = (Vec::new(), Vec::new());
    for named in named.collect::<Result<Vec<_>>>()? {
        match named {
            Named::Cuda(ordinal) => ordinals.push(ordinal),
            Named::Simulated(name, profile) => profiles.push((name, *profile)),
        }
    }
    let asked = || names.join(", ");
    match (ordinals.is_empty(), profiles.is_empty()) {
        (true, true) => Err(none(asked(), "no name was given")),
        (false, false) => {
            let why = "real and simulated devices cannot wait for each other; open them apart";
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

/// A real device if there is one.
fn auto(options: &Options) -> Result<Arc<dyn Backend>> {
    match real(&[0], options) {
        Ok(machine) => {
            let name = &machine.devices()[0].name;
            (options.notice)(&format!("sidestream: `auto` is {name}"));
            Ok(Arc::new(machine))
        }
        Err(why) => {
            let text = match why {
                cuda::Unusable::Absent(cuda::Absent::NotLoaded(_)) if options.driver.is_none() => {
                    "sidestream: `auto` is the simulated sim:h200; there is no NVIDIA driver"
                        .to_owned()
                }
                why => format!("sidestream: `auto` is the simulated sim:h200; {why}"),
            };
            (options.notice)(&text);
            let profile = ("sim:h200".to_owned(), Profile::h200());
            Ok(simulated(vec![profile], options))
        }
    }
}

fn real(ordinals: &[u32], options: &Options) -> Result<cuda::Machine, cuda::Unusable> {
    let (driver, compiler) = (options.driver.as_deref(), options.compiler.as_deref());
    // SAFETY: whoever named a file in the options has promised that it is what it stands for.
    unsafe { cuda::Machine::open(ordinals, driver, compiler) }
}

fn simulated(profiles: Vec<(String, Profile)>, options: &Options) -> Arc<dyn Backend> {
    let machine = sim::Machine::new(profiles, options.schedule, options.memory_bytes);
    Arc::new(machine)
}

fn named(name: &str) -> Result<Named> {
    if let Some(rest) = name.strip_prefix("cuda") {
        let ordinal = match rest.strip_prefix(':') {
            Some(number) => number.parse().ok(),
            None => rest.is_empty().then_some(0),
        };
        return ordinal.map(Named::Cuda).ok_or_else(|| unknown(name));
    }
    let model = name.strip_prefix("sim:").ok_or_else(|| unknown(name))?;
    let profile = match model.ends_with(".toml") {
        true => {
            let text = std::fs::read_to_string(model);
            let text = text.map_err(|error| none(name, error.to_string()))?;
            Profile::from_toml(&text).map_err(|error| none(name, error.to_string()))?
        }
        false => Profile::named(model).ok_or_else(|| unknown(name))?,
    };
    Ok(Named::Simulated(name.to_owned(), Box::new(profile)))
}

fn unknown(name: &str) -> Error {
    let why = "there are cuda:0 and so on, sim:h200, sim:a100, sim:a10g, sim:rtx4090, \
               sim:FILE.toml for one of your own, and auto alone";
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
