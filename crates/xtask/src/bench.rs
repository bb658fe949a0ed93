//! `cargo xtask bench`: runs every benchmark, briefly.

use anyhow::{Result, ensure};

use crate::cargo::{self, Workspace};

/// Runs the benchmarks, which print what they measure.
pub fn run() -> Result<bool> {
    // Each is run separately: `cargo bench --workspace` would pass criterion's flag to unit tests too.
    for bench in Workspace::read()?.targets("bench") {
        let (package, name) = (&*bench.package, &*bench.name);
        let target = ["bench", "--package", package, "--bench", name];
        let quick = [&target[..], &["--", "--quick"]].concat();
        ensure!(
            cargo::succeeds(cargo::command(&quick))?,
            "the benchmark `{name}` of {package} failed"
        );
    }
    Ok(true)
}
