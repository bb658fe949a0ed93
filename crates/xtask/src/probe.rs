//! `cargo xtask probe`: compiles the probe of `sidestream check --exact` with each of NVIDIA's libraries that it is for. No GPU is
//! needed, and none runs it.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo;
use crate::python::Environment;

/// The last library of each version, and a compiler that knows all devices.
const LIBRARIES: [&str; 6] = [
    "13.0.85", "13.1.118", "13.2.87", "13.3.75", "13.4.92", "13.5.25",
];
const COMPILER: &str = "nvidia-cuda-nvcc==13.5.37";
/// The compute capabilities, one of each generation.
const DEVICES: &str = "80,90,100,120";

/// Compiles all. Returns whether all are well.
pub fn run() -> Result<bool> {
    ensure!(
        cargo::succeeds(cargo::command(&[
            "build",
            "--quiet",
            "-p",
            "sidestream-cli"
        ]))?,
        "the command cannot be built"
    );
    let target = cargo::Workspace::read()?.target_dir;
    let mut all_well = true;
    for library in LIBRARIES {
        let environment = Environment::of("probe")?;
        environment.clear()?;
        environment.install(&[&format!("nvidia-cuda-sanitizer-api=={library}"), COMPILER])?;
        let mut check = Command::new(target.join("debug/sidestream"));
        check.args(["check", "--exact", "--"]);
        check.arg(environment.interpreter()).args(["-c", ""]);
        check.env("XDG_CACHE_HOME", environment.folder.join("cache"));
        check.env("SIDESTREAM_EXACT_ARCH", DEVICES);
        let said = check.output()?.stderr;
        let said = String::from_utf8_lossy(&said);
        // The program calls no CUDA, so it is all that there is to say.
        let is_well = said.contains("did not initialize CUDA");
        all_well &= is_well;
        println!("{library}: {}", if is_well { "compiled" } else { &said });
    }
    Ok(all_well)
}
