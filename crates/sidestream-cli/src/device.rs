//! `--device`: the name of a simulated GPU, or the file that describes one.

use sidestream::engine::Profile;

use crate::failure::Failure;

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
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    Profile::from_toml(&text).map_err(|e| Failure::input(format!("{}: {e}", path.display())))
}

fn known() -> String {
    let names = Profile::NAMES.iter().map(|name| format!("sim:{name}"));
    names.collect::<Vec<_>>().join(", ")
}
