//! `cargo xtask test`: everything that has to pass before a change goes in.
//!
//! Cheap steps first. A failed step does not hide the later ones, except that nothing is tried after
//! a failed build. Nothing is built twice: tests, examples and the Python package share one profile.

use anyhow::Result;

use crate::python::DRIVE;
use crate::steps::{Run, TESTED};
use crate::tidy;

/// Runs all steps; whether all passed.
pub fn run() -> Result<bool> {
    let mut run = Run::new()?;
    run.cargo("format", &["fmt", "--all", "--check"])?;
    run.step("tidy", "cargo xtask tidy", |_| tidy::run())?;
    run.cargo(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            DRIVE,
            "--",
            "-D",
            "warnings",
        ],
    )?;
    if let Some(built) = run.build()? {
        run.tests(&built, &[])?;
        run.cargo(
            "doc tests",
            &[&["test", "--doc", "--no-fail-fast"], &TESTED[..]].concat(),
        )?;
        run.examples(&built)?;
        // Libraries only: a command and its library may share a name, and rustdoc would write both to one place.
        run.cargo(
            "docs",
            &[&["doc", "--lib", "--no-deps"], &TESTED[..]].concat(),
        )?;
        run.cargo("python", &["xtask", "python"])?;
    }
    Ok(run.finish())
}
