//! The test programs of the workspace: built by one call of cargo, and run in parallel, one per core.
//!
//! Cargo runs one program after the other, and each ends with its longest test running alone. In parallel, they keep
//! all cores busy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::cargo;

/// The programs that one build of everything leaves to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Built {
    pub tests: Vec<Program>,
    pub examples: Vec<Program>,
}

/// A built program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Cargo's arguments to run the program: `--package sidestream --test tests`.
    pub selection: String,
    pub name: String,
    pub path: PathBuf,
    /// The folder of its package, in which its tests are run.
    pub folder: PathBuf,
}

/// Builds with these arguments for cargo; `None` if the build failed.
pub fn build(args: &[&str]) -> Result<Option<Built>> {
    let Some(messages) = cargo::built(args)? else {
        return Ok(None);
    };
    let mut built = Built::default();
    messages.iter().for_each(|message| built.add(message));
    built.tests.sort();
    built.examples.sort();
    Ok(Some(built))
}

impl Built {
    fn add(&mut self, message: &Value) {
        let Some(program) = Program::of(message) else {
            return;
        };
        let kinds = message["target"]["kind"].as_array();
        let is_example = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "example"));
        match (message["profile"]["test"].as_bool(), is_example) {
            (Some(true), _) => self.tests.push(program),
            (_, true) => self.examples.push(program),
            // The command itself, which tests and users run.
            _ => {}
        }
    }
}

impl Program {
    fn of(message: &Value) -> Option<Program> {
        let path = message["executable"].as_str()?;
        let target = &message["target"];
        let name = target["name"].as_str()?.to_owned();
        let kind = target["kind"][0].as_str()?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        // `path+file:///…/crates/stand-in#sidestream-stand-in@0.1.0`: the name is omitted if the folder has it.
        let id = message["package_id"].as_str()?.rsplit('#').next()?;
        let folder = manifest.parent()?;
        let package = match id.split_once('@') {
            Some((package, _)) => package,
            None => folder.file_name()?.to_str()?,
        };
        let target = match kind {
            "test" | "example" | "bin" => format!("--{kind} {name}"),
            // All kinds of libraries.
            _ => "--lib".to_owned(),
        };
        Some(Program {
            selection: format!("--package {package} {target}"),
            name,
            path: path.into(),
            folder: folder.to_owned(),
        })
    }
}

/// A program that has run.
pub struct Ran<'a> {
    pub program: &'a Program,
    pub succeeded: bool,
    /// The output of both streams.
    pub output: String,
}

/// Runs all programs, with these variables in their environment, and passes on each as it ends. Their output goes
/// through files in `folder`.
pub fn run<'a>(
    programs: &'a [Program],
    environment: &[(&str, &str)],
    folder: &Path,
    each: impl FnMut(Ran<'a>) + Send,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let left = Mutex::new(programs.iter().enumerate());
    let each = Mutex::new(each);
    let lanes = thread::available_parallelism().map_or(2, usize::from);
    let lane = || -> Result<()> {
        loop {
            let Some((at, program)) = left.lock().map_err(|_| panicked())?.next() else {
                return Ok(());
            };
            let log = folder.join(format!("tests-{at}.log"));
            let ran = run_one(program, environment, &log)?;
            each.lock().map_err(|_| panicked())?(ran);
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            lane.join().map_err(|_| panicked())??;
        }
        Ok(())
    })
}

fn panicked() -> anyhow::Error {
    anyhow!("a thread that runs test programs panicked; its message is above")
}

fn run_one<'a>(program: &'a Program, environment: &[(&str, &str)], log: &Path) -> Result<Ran<'a>> {
    let cannot = || format!("cannot write {}", log.display());
    let output = File::create(log).with_context(cannot)?;
    let status = Command::new(&program.path)
        // Rust's test harness reports the time of each test only if unstable options are enabled, which on a stable
        // toolchain requires this variable. Nothing is compiled here.
        .env("RUSTC_BOOTSTRAP", "1")
        .envs(environment.iter().copied())
        .args(["-Zunstable-options", "--report-time"])
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stderr(output.try_clone().with_context(cannot)?)
        .stdout(output)
        .status()
        .with_context(|| format!("cannot run {}", program.path.display()))?;
    let output = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(Ran {
        program,
        succeeded: status.success(),
        // Output that is not UTF-8 belongs to a test that prints bytes: the rest is shown.
        output: String::from_utf8_lossy(&output).into_owned(),
    })
}

/// Runs an example, which must succeed on any machine.
pub fn example(program: &Program) -> Result<bool> {
    ensure!(program.path.is_file(), "{} is gone", program.path.display());
    let mut command = Command::new(&program.path);
    command.current_dir(cargo::root());
    cargo::succeeds(command)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cargo_built_is_sorted_by_what_it_is_for() {
        let message = |kind: &str, name: &str, id: &str, is_test: bool| {
            json!({"reason": "compiler-artifact", "package_id": id, "manifest_path": "/r/crates/stand-in/Cargo.toml",
                "target": {"name": name, "kind": [kind]}, "profile": {"test": is_test},
                "executable": format!("/t/{name}-1")})
        };
        let named = "path+file:///r/crates/stand-in#sidestream-stand-in@0.1.0";
        let short = "path+file:///r/crates/stand-in#0.1.0";
        let mut built = Built::default();
        built.add(&message("test", "driver", named, true));
        built.add(&message("rlib", "stand_in", short, true));
        built.add(&message("example", "adds", named, false));
        built.add(&message("bin", "command", named, false));
        built.add(&json!({"reason": "build-finished", "success": true}));
        let selections = |programs: &[Program]| -> Vec<String> {
            programs.iter().map(|p| p.selection.clone()).collect()
        };
        assert_eq!(
            selections(&built.tests),
            [
                "--package sidestream-stand-in --test driver",
                "--package stand-in --lib"
            ]
        );
        assert_eq!(
            selections(&built.examples),
            ["--package sidestream-stand-in --example adds"]
        );
        assert_eq!(built.tests[0].folder, Path::new("/r/crates/stand-in"));
    }

    #[test]
    fn all_programs_run_and_say_how_they_ended() {
        let program = |name: &str, path: &str| Program {
            selection: String::new(),
            name: name.to_owned(),
            path: path.into(),
            folder: std::env::temp_dir(),
        };
        let programs = [program("good", "true"), program("bad", "false")];
        let folder = std::env::temp_dir().join(format!("xtask-programs-{}", std::process::id()));
        let mut ended = Vec::new();
        run(&programs, &[], &folder, |ran| {
            ended.push((ran.program.name.clone(), ran.succeeded))
        })
        .unwrap();
        ended.sort();
        assert_eq!(
            ended,
            [("bad".to_owned(), false), ("good".to_owned(), true)]
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
