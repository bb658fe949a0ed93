//! `cargo xtask miri`: what safe code may do to the runtime, under Miri.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;

/// Addresses of simulated memory are numbers that become pointers again; forgetting is what the
/// tests try, so that leaks are none of its business; the runtime asks for the time.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation";

/// Whether there is a toolchain with Miri. Not that of the cargo which runs this chore: Miri is a part of the nightly one.
pub fn is_there() -> Result<bool> {
    let answer = Command::new("cargo")
        .args(["+nightly", "miri", "--version"])
        .env_remove("RUSTUP_TOOLCHAIN")
        .output()
        .context("cannot run `cargo +nightly`, which takes rustup")?;
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
