//! `cargo xtask truth`: judges what `sidestream diagnose` reports for jobs whose faults are known.

use anyhow::Result;

use crate::cargo;

/// Judges jobs, in an optimized build: unoptimized, many jobs take hours. The program is a separate crate, so that
/// xtask needs no build of the library.
pub fn run(args: &[&str]) -> Result<bool> {
    let run = ["run", "--quiet", "--release", "--package", "truth", "--"];
    cargo::succeeds(cargo::command(&[&run, args].concat()))
}
