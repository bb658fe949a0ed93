//! `--device`: the name of a GPU, real or simulated, or the file that describes one.

use std::path::Path;

use sidestream::device::DeviceName;
use sidestream::engine::Profile;

use crate::failure::{Failure, shown, tell};
use crate::input;
use crate::measure::raw::devices::Started;

/// What a `--device` names.
pub enum Named {
    /// This device of the driver's.
    Cuda(u32),
    /// A simulated device.
    Simulated(Box<Profile>),
}

/// The help of an argument that names a device, with the built-in ones in the place of `{sim}` and `{names}`.
pub fn help(text: &str) -> String {
    let [names @ .., last] = &Profile::NAMES;
    let names = format!("{} or {last}", names.join(", "));
    let text = text.replace("{names}", &names);
    text.replace("{sim}", &DeviceName::built_in())
}

/// What a `--device` names: `cuda`, `cuda:1`, `sim:h200`, `sim:FILE.toml`, or with `auto` the GPU if
/// there is one. `driver` is the driver's library, if not the one that the system has.
pub fn named(name: &str, driver: Option<&Path>) -> Result<Named, Failure> {
    let simulated = |name| Ok(Named::Simulated(Box::new(profile(name)?)));
    if name == "auto" {
        return match Started::open(driver) {
            Ok(started) if started.count > 0 => Ok(Named::Cuda(0)),
            Ok(_) => {
                tell("sidestream: the driver has no GPU; `auto` is the simulated H200");
                simulated("sim:h200")
            }
            // A driver that was named and is none is a mistake, not a machine without a GPU.
            Err(why) if driver.is_some() => Err(Failure::input(why)),
            Err(_) => {
                tell("sidestream: there is no NVIDIA driver; `auto` is the simulated H200");
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

/// The profile that a `--device` names: `sim:h200`, or `sim:FILE.toml`.
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

/// The reader of TOML draws the place of a mistake below the line that names it, and says what it
/// is at the end.
fn in_one_line(text: &str) -> String {
    match text.trim().split_once('\n') {
        None => text.to_owned(),
        Some((first, rest)) => format!("{first}: {}", rest.lines().last().unwrap_or_default()),
    }
}
