//! `cargo xtask miri`: runs the tests of what safe code may do to the runtime, under Miri.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;

/// Addresses of simulated memory are integers that are converted back to pointers; the tests leak on purpose; and the
/// runtime reads the clock.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation";

/// Whether a toolchain with Miri is installed. It belongs to the nightly toolchain, not to the cargo that runs this
/// program.
pub fn is_there() -> Result<bool> {
    let answer = Command::new("cargo")
        .args(["+nightly", "miri", "--version"])
        .env_remove("RUSTUP_TOOLCHAIN")
        .output()
        .context("cannot run `cargo +nightly`, which requires rustup")?;
    Ok(answer.status.success())
}

/// Runs the soundness tests, or those whose names begin with `name`.
pub fn run(name: Option<&str>) -> Result<bool> {
    if !is_there()? {
        bail!(
            "Miri is missing; `rustup toolchain install nightly --component miri,rust-src` \
             installs it"
        );
    }
    let mut miri = Command::new("cargo");
    miri.args([
        "+nightly",
        "miri",
        "test",
        "-p",
        "sidestream",
        "--test",
        "tests",
    ])
    .arg(format!("soundness::{}", name.unwrap_or_default()))
    .current_dir(cargo::root())
    .env_remove("RUSTUP_TOOLCHAIN")
    .env("MIRIFLAGS", FLAGS);
    let status = miri.status().context("cannot run `cargo +nightly miri`")?;
    Ok(status.success())
}
