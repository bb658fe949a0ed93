//! `cargo xtask model`: the ring and the recorder under the orders of threads that Shuttle draws.

use anyhow::{Context, Result};

use crate::cargo;

/// Builds the library with other locks, and runs the model.
pub fn run() -> Result<bool> {
    let manifest = "crates/sidestream/model/Cargo.toml";
    let target = "target/model";
    let args = ["test", "--manifest-path", manifest, "--target-dir", target];
    let status = cargo::command(&args).status();
    Ok(status.context("cannot run cargo")?.success())
}
