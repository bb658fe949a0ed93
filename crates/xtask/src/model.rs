//! `cargo xtask model`: the ring and the recorder under the orders of threads that Shuttle draws.

use anyhow::{Context, Result};

use crate::cargo;

/// A workspace of its own: the library there has other locks.
pub const MANIFEST: &str = "crates/sidestream/model/Cargo.toml";

/// Builds the library with other locks, and runs the model.
pub fn run() -> Result<bool> {
    let target = "target/model";
    let args = ["test", "--manifest-path", MANIFEST, "--target-dir", target];
    let status = cargo::command(&args).status();
    Ok(status.context("cannot run cargo")?.success())
}
