//! Checks that the Python package is built with the same features as the tests.
//!
//! Cargo unites the features that the crates of one command request. If a test tool requests another feature of a
//! shared dependency, the package needs a second build of it and of everything above it, which is nearly everything.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::Complaint;
use crate::cargo;
use crate::steps::TESTED;

/// Reads the dependency trees of both from cargo.
pub fn read() -> Result<(String, String)> {
    let package = [
        "--package",
        "sidestream-py",
        "--package",
        "sidestream-stand-in",
    ];
    Ok((
        tree("{p} {f}", "normal,build,dev", &TESTED)?,
        tree("{p} {f}", "normal,build", &package)?,
    ))
}

/// A line of this format for each crate.
pub fn tree(format: &str, edges: &str, selection: &[&str]) -> Result<String> {
    let asked = [
        "tree", "--locked", "--prefix", "none", "--format", format, "--edges", edges,
    ];
    let output = cargo::command(&[&asked[..], selection].concat())
        .output()
        .context("cannot run `cargo tree`")?;
    ensure!(
        output.status.success(),
        "`cargo tree` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Complains about crates that the package has with other features.
pub fn check(tests: &str, package: &str) -> Vec<Complaint> {
    fn crates(text: &str) -> BTreeSet<&str> {
        // Cargo marks crates that it has listed before.
        let lines = text
            .lines()
            .map(|line| line.trim_end_matches(" (*)").trim());
        lines.filter(|line| !line.is_empty()).collect()
    }
    let tests = crates(tests);
    let other = crates(package);
    let other = other.difference(&tests);
    let what = other.map(|line| {
        let name = line.split(' ').next().unwrap_or(line);
        let there = tests.iter().filter(|there| there.split(' ').next() == Some(name));
        let there: Vec<&str> = there.copied().collect();
        format!(
            "the Python package has `{line}` and the tests `{}`, so everything above it is built twice; ask for the same features in crates/sidestream/Cargo.toml",
            there.join("`, `")
        )
    });
    what.map(|what| Complaint::new("Cargo.toml", 1, what))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_more_is_named_with_both_lists() {
        let tests = "a v1.0.0 std\nb v2.0.0 \na v1.0.0 std (*)\ntool v1.0.0 x\n";
        assert_eq!(check(tests, "a v1.0.0 std\nb v2.0.0 (*)\n"), []);
        let found = check(tests, "a v1.0.0 \n");
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .what
                .contains("`a v1.0.0` and the tests `a v1.0.0 std`")
        );
    }
}
