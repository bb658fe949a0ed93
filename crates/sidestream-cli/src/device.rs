//! `--device`: the name of a simulated GPU, or the file that describes one.

use sidestream::engine::Profile;

use crate::failure::Failure;
use crate::input;

/// The profile that a `--device` names: `sim:h200`, or `sim:FILE.toml`.
pub fn open(name: &str) -> Result<Profile, Failure> {
    let Some(model) = name.strip_prefix("sim:") else {
        return Err(Failure::input(format!(
            "no device is called {name:?}; there are {} and sim:FILE.toml",
            known()
        )));
    };
    if let Some(profile) = Profile::named(model) {
        return Ok(profile);
    }
    let is_file = model.ends_with(".toml") || model.contains('/');
    if !is_file {
        return Err(Failure::input(format!(
            "no simulated GPU is called {model:?}; there are {} and sim:FILE.toml",
            known()
        )));
    }
    let path = std::path::Path::new(model);
    let bytes = input::read(path, input::open(path)?)?;
    let bad = |why: &str| Failure::input(format!("{}: {why}", path.display()));
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

fn known() -> String {
    let names = Profile::NAMES.iter().map(|name| format!("sim:{name}"));
    names.collect::<Vec<_>>().join(", ")
}
