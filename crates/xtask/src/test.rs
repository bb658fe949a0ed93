//! What every change must pass: `cargo xtask lint`, which runs none of the code, and `cargo xtask test`.
//!
//! Cheap steps come first. A failed step does not hide the later ones, except that nothing is run after a failed
//! build. Nothing is built twice: tests, examples and the Python package share one profile, and the macros and build
//! scripts that lint has built are reused by the tests.

use anyhow::Result;

use crate::cargo::Workspace;
use crate::model;
use crate::python::DRIVE;
use crate::steps::{Run, TESTED};
use crate::tidy;

/// Checks the code without running it. Returns whether all checks passed.
pub fn lint() -> Result<bool> {
    let mut run = Run::new()?;
    run.cargo("format", &["fmt", "--all", "--check"])?;
    run.step("tidy", "cargo xtask tidy", |_| tidy::run())?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        DRIVE,
    ];
    let strict = ["--", "-D", "warnings"];
    run.cargo("clippy", &[&clippy[..], &strict].concat())?;
    // No other step checks the model. Its dependencies are built already.
    let target = Workspace::read()?.target_dir;
    let target = target.to_string_lossy();
    let of_model = [
        "clippy",
        "--manifest-path",
        model::MANIFEST,
        "--target-dir",
        &target,
    ];
    let of_model = [&of_model[..], &["--locked", "--tests"], &strict].concat();
    run.cargo("clippy of the model", &of_model)?;
    // Only libraries: a command and its library may share a name, and rustdoc would write both to one place.
    run.cargo(
        "docs",
        &[&["doc", "--lib", "--no-deps"], &TESTED[..]].concat(),
    )?;
    Ok(run.finish())
}

/// Runs all tests and examples. Returns whether all passed.
pub fn run() -> Result<bool> {
    let mut run = Run::new()?;
    if let Some(built) = run.build()? {
        run.tests(&built, &[])?;
        let doc_tests = ["test", "--doc", "--no-fail-fast"];
        run.cargo("doc tests", &[&doc_tests, &TESTED[..]].concat())?;
        run.examples(&built)?;
        run.cargo("python", &["xtask", "python"])?;
    }
    Ok(run.finish())
}
