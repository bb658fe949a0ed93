//! Calls of cargo: to find out where things are, and to run things.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The root of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// A cargo command in the root, with the same cargo that runs this program.
pub fn command(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// A command of the nightly toolchain's cargo, not the one that runs this program.
pub fn nightly(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    let nightly = command.arg("+nightly").args(args);
    nightly.current_dir(root()).env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Whether the nightly toolchain has this tool.
pub fn has_nightly(tool: &str) -> bool {
    let asked = nightly(&[tool, "--version"]).output();
    asked.is_ok_and(|answer| answer.status.success())
}

/// Runs a command and returns whether it succeeded.
pub fn succeeds(mut command: Command) -> Result<bool> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(status.success())
}

/// Builds with these arguments. Returns cargo's messages on what was built; `None` if the build failed.
pub fn built(args: &[&str]) -> Result<Option<Vec<Value>>> {
    let mut build = command(args);
    build.arg("--message-format=json-render-diagnostics");
    let output = build.stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let messages: Result<_, _> = messages.collect();
    let messages = messages.context("cargo did not answer with JSON")?;
    Ok(output.status.success().then_some(messages))
}

/// A benchmark or an example of the workspace.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The name of its package.
    pub package: String,
    /// The name of the target.
    pub name: String,
}

/// The targets of the workspace.
pub struct Workspace {
    /// The folder of cargo's build output.
    pub target_dir: PathBuf,
    packages: Vec<Value>,
}

impl Workspace {
    /// Reads the workspace from `cargo metadata`.
    pub fn read() -> Result<Workspace> {
        let output = command(&["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("cannot run `cargo metadata`")?;
        ensure!(
            output.status.success(),
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Workspace::parse(&output.stdout)
    }

    fn parse(json: &[u8]) -> Result<Workspace> {
        let metadata: Value =
            serde_json::from_slice(json).context("`cargo metadata` did not answer with JSON")?;
        let target_dir = metadata["target_directory"]
            .as_str()
            .context("`cargo metadata` names no target directory")?;
        Ok(Workspace {
            target_dir: target_dir.into(),
            packages: metadata["packages"].as_array().cloned().unwrap_or_default(),
        })
    }

    /// All targets of a kind (`bench`, `example`), sorted.
    pub fn targets(&self, kind: &str) -> Vec<Target> {
        let mut found = Vec::new();
        for package in &self.packages {
            let targets = package["targets"].as_array();
            for target in targets.into_iter().flatten() {
                let kinds = target["kind"].as_array();
                if kinds.into_iter().flatten().any(|k| k == kind) {
                    found.push(Target {
                        package: package["name"].as_str().unwrap_or_default().to_owned(),
                        name: target["name"].as_str().unwrap_or_default().to_owned(),
                    });
                }
            }
        }
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_listed_by_kind() {
        let json = br#"{"target_directory": "/t", "packages": [
            {"name": "b", "targets": [{"name": "fast", "kind": ["bench"]}, {"name": "b", "kind": ["lib"]}]},
            {"name": "a", "targets": [{"name": "slow", "kind": ["bench"]}]}]}"#;
        let workspace = Workspace::parse(json).unwrap();
        let benches = workspace.targets("bench");
        let names: Vec<_> = benches.iter().map(|t| (&*t.package, &*t.name)).collect();
        assert_eq!(names, [("a", "slow"), ("b", "fast")]);
        assert_eq!(workspace.targets("example"), []);
    }

    #[test]
    fn an_answer_that_is_no_metadata_is_an_error() {
        assert!(Workspace::parse(b"{}").is_err());
        assert!(Workspace::parse(b"error").is_err());
    }
}
