//! `cargo xtask miri`: runs the tests of what safe code may do to the runtime, under Miri.

use anyhow::{Result, ensure};

use crate::cargo;

/// Addresses of simulated memory are integers that are converted back to pointers; the tests leak on purpose; and the
/// runtime reads the clock.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation";

/// Runs the soundness tests, or those whose names begin with `name`.
pub fn run(name: Option<&str>) -> Result<bool> {
    ensure!(
        cargo::has_nightly("miri"),
        "Miri is missing; `rustup toolchain install nightly --component miri,rust-src` installs it"
    );
    let tests = format!("soundness::{}", name.unwrap_or_default());
    let package = ["test", "-p", "sidestream", "--test", "tests"];
    let mut miri = cargo::nightly(&[&["miri"], &package[..], &[&tests]].concat());
    miri.env("MIRIFLAGS", FLAGS);
    cargo::succeeds(miri)
}
