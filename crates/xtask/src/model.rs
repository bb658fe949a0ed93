//! `cargo xtask model`: checks the ring and the recorder under the thread schedules that Shuttle draws.

use anyhow::Result;

use crate::cargo;

/// A separate workspace: the library uses other locks there.
pub const MANIFEST: &str = "crates/sidestream/model/Cargo.toml";

/// Builds the library with Shuttle's locks, and runs the model.
pub fn run() -> Result<bool> {
    let target = "target/model";
    let args = ["test", "--manifest-path", MANIFEST, "--target-dir", target];
    cargo::succeeds(cargo::command(&args))
}
