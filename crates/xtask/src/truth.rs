//! `cargo xtask truth`: what `sidestream diagnose` says of jobs of which the truth is known.

use anyhow::{Context, Result};

use crate::cargo;

/// Judges jobs, with optimisation: unoptimised, many take hours. The program is a crate of its own, so that
/// the chores need no build of the library.
pub fn run(args: &[&str]) -> Result<bool> {
    let run = ["run", "--quiet", "--release", "--package", "truth", "--"];
    let mut command = cargo::command(&[&run, args].concat());
    let status = command.status().context("cannot run the crate `truth`")?;
    Ok(status.success())
}
