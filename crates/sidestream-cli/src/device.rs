//! `--device`: the name of a GPU, real or simulated, or the file that describes one.

use std::path::Path;

use sidestream::device::DeviceName;
use sidestream::engine::Profile;

use crate::failure::{Failure, shown, tell};
use crate::input;
use crate::measure::raw::devices::Started;

/// The device that a `--device` argument names.
pub enum Named {
    /// The GPU with this index in the driver.
    Cuda(u32),
    /// A simulated device.
    Simulated(Box<Profile>),
}

/// Returns the help of an argument that names a device, with the names of the built-in devices in place of `{sim}` and
/// `{names}`.
pub fn help(text: &str) -> String {
    let [names @ .., last] = &Profile::NAMES;
    let names = format!("{} or {last}", names.join(", "));
    let text = text.replace("{names}", &names);
    text.replace("{sim}", &DeviceName::built_in())
}

/// Resolves a `--device` argument: `cuda`, `cuda:1`, `sim:h200`, `sim:FILE.toml`, or `auto` for the GPU if there is one.
/// `driver` is the driver's library, if not the system's own.
pub fn named(name: &str, driver: Option<&Path>) -> Result<Named, Failure> {
    let simulated = |name| Ok(Named::Simulated(Box::new(profile(name)?)));
    if name == "auto" {
        return match Started::open(driver) {
            Ok(started) if started.count > 0 => Ok(Named::Cuda(0)),
            Ok(_) => {
                tell("sidestream: the driver finds no GPU; `auto` uses the simulated H200");
                simulated("sim:h200")
            }
            // A given driver file that is not a driver is the user's mistake, not a machine without a GPU.
            Err(why) if driver.is_some() => Err(Failure::input(why)),
            Err(_) => {
                tell("sidestream: there is no NVIDIA driver; `auto` uses the simulated H200");
                simulated("sim:h200")
            }
        };
    }
    match DeviceName::of(name) {
        Some(DeviceName::Cuda(number)) => Ok(Named::Cuda(number)),
        Some(_) if driver.is_some() => Err(Failure::input(format!(
            "{name} needs no driver; leave --driver out, or give --device cuda:0"
        ))),
        Some(_) => simulated(name),
        None => Err(Failure::device(format!(
            "no device is called {name:?}; there are {} and sim:FILE.toml, and for a GPU cuda:0, \
             cuda:1 and so on, or auto",
            DeviceName::built_in()
        ))),
    }
}

/// Returns the profile that a `--device` argument names: `sim:h200`, or `sim:FILE.toml`.
pub fn profile(name: &str) -> Result<Profile, Failure> {
    let known = DeviceName::built_in();
    let path = match DeviceName::of(name) {
        Some(DeviceName::File(file)) => Path::new(file),
        Some(DeviceName::Simulated(model)) => {
            return Profile::named(model).ok_or_else(|| {
                let file = match Path::new(model).is_file() {
                    true => format!("; the file of that name is sim:./{model}"),
                    false => "; the name of a file ends in .toml or has a / in it".to_owned(),
                };
                Failure::device(format!(
                    "no simulated GPU is called {model:?}; there are {known} and sim:FILE.toml{file}"
                ))
            });
        }
        Some(DeviceName::Cuda(_)) | None => {
            return Err(Failure::input(format!(
                "no device is called {name:?}; there are {known} and sim:FILE.toml"
            )));
        }
    };
    let bytes = input::read(path, input::open(path)?)?;
    let bad = |why: &str| Failure::input(format!("{}: {why}", shown(path)));
    let text = str::from_utf8(&bytes).map_err(|_| bad("not UTF-8; save the file as UTF-8"))?;
    Profile::from_toml(text).map_err(|error| bad(&in_one_line(&error.to_string())))
}

/// Puts an error of the TOML reader into one line: its first line, which names the place, and its last, which gives the reason;
/// the excerpt between them is left out.
fn in_one_line(text: &str) -> String {
    match text.trim().split_once('\n') {
        None => text.to_owned(),
        Some((first, rest)) => format!("{first}: {}", rest.lines().last().unwrap_or_default()),
    }
}
