//! `cargo xtask gpu-bundle`: collects what is run on a machine with a GPU in one folder, to be copied there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo::{self, Workspace};

/// The name of the folder, in the target folder.
const FOLDER: &str = "gpu-bundle";
/// The maximum size of the folder in bytes.
const MOST_BYTES: u64 = 60_000_000;
/// The script that runs the programs there.
const RUN: &str = include_str!("run.sh");

/// A program of the bundle.
struct Piece {
    /// The program's name in the bundle.
    name: &'static str,
    /// Cargo's name for this kind of target, and of the option that selects one.
    kind: &'static str,
    /// The arguments that build the program, up to the name of its package.
    build: &'static [&'static str],
}

const PIECES: [Piece; 4] = [
    Piece {
        name: "sidestream",
        kind: "bin",
        build: &["build", "--release"],
    },
    Piece {
        name: "sidestream-bench",
        kind: "bin",
        build: &["build", "--release"],
    },
    Piece {
        name: "conformance",
        kind: "test",
        build: &["test", "--release", "--no-run"],
    },
    Piece {
        name: "runtime",
        kind: "bench",
        build: &["bench", "--no-run"],
    },
];

/// Collects the bundle. Returns `false` if it is too large. A program that the repository does not have is reported,
/// and left out.
pub fn run() -> Result<bool> {
    let workspace = Workspace::read()?;
    let folder = workspace.target_dir.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut bytes = 0;
    for piece in &PIECES {
        let to = folder.join(piece.name);
        remove(&to)?;
        let targets = workspace.targets(piece.kind);
        let Some(target) = targets.iter().find(|target| target.name == piece.name) else {
            println!("{}: missing, there is no such {}", piece.name, piece.kind);
            continue;
        };
        let built = build(piece, &target.package)?;
        bytes += carry(&built, &to)?;
    }
    let script = folder.join("run.sh");
    fs::write(&script, RUN).with_context(|| format!("cannot write {}", script.display()))?;
    make_executable(&script)?;
    let (megabytes, most) = (bytes as f64 / 1e6, MOST_BYTES as f64 / 1e6);
    println!("{}: {megabytes:.1} MB, at most {most} MB", folder.display());
    if bytes > MOST_BYTES {
        println!("the bundle is too large to be copied");
    }
    Ok(bytes <= MOST_BYTES)
}

/// Builds a program and returns its path.
fn build(piece: &Piece, package: &str) -> Result<PathBuf> {
    let option = format!("--{}", piece.kind);
    let target = ["--package", package, &*option, piece.name];
    let messages = cargo::built(&[piece.build, &target].concat())?;
    let messages = messages.with_context(|| format!("`{}` cannot be built", piece.name))?;
    let built = executable(&messages, piece.kind, piece.name);
    built.with_context(|| format!("cargo does not say where `{}` is", piece.name))
}

/// The path of a program, from the messages of its build.
fn executable(messages: &[Value], kind: &str, name: &str) -> Option<PathBuf> {
    let mut found = messages.iter().filter_map(|message| {
        let target = &message["target"];
        let is_it = target["name"] == name && target["kind"].as_array()?.iter().any(|k| k == kind);
        let path = message["executable"].as_str()?;
        is_it.then(|| PathBuf::from(path))
    });
    found.next_back()
}

/// Copies a program without its debug information, and prints its size.
fn carry(from: &Path, to: &Path) -> Result<u64> {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).status();
    if !stripped.is_ok_and(|status| status.success()) {
        println!("`strip` does not work here; {} stays large", to.display());
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let data = fs::metadata(to).with_context(|| format!("cannot read {}", to.display()))?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    println!("{name}: {:.1} MB", data.len() as f64 / 1e6);
    Ok(data.len())
}

/// Removes what an earlier run may have left.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode)
        .with_context(|| format!("cannot make {} executable", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_the_messages_of_its_build() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"conformance","kind":["test"]},"executable":"/t/conformance-1"}
{"reason":"compiler-artifact","target":{"name":"conformance","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"sidestream","kind":["bin"]},"executable":"/t/sidestream"}
{"reason":"build-finished","success":true}"#;
        let messages = serde_json::Deserializer::from_str(messages).into_iter();
        let messages: Vec<Value> = messages.collect::<Result<_, _>>().expect("JSON");
        let found = |kind, name| executable(&messages, kind, name);
        assert_eq!(
            found("test", "conformance"),
            Some("/t/conformance-1".into())
        );
        assert_eq!(found("bin", "sidestream"), Some("/t/sidestream".into()));
        assert_eq!(found("bench", "runtime"), None);
    }

    /// Makes a bundle with these programs, each a line of shell, and returns what `run.sh` with these arguments
    /// yields: its exit code, its output, and its folder.
    fn bundle(name: &str, programs: &[(&str, &str)], args: &[&str]) -> (i32, String, PathBuf) {
        let folder = std::env::temp_dir().join(format!("sidestream-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let script = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            make_executable(&path).expect("it is ours");
            path
        };
        for (name, line) in programs {
            script(name, &format!("#!/bin/sh\n{line}\n"));
        }
        let run = script("run.sh", RUN);
        let mut command = Command::new("sh");
        let output = command
            .arg(&run)
            .args(args)
            .env("OUT", folder.join("results"));
        let output = output.output().expect("there is a shell");
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code().expect("an exit code"), text, folder)
    }

    #[test]
    fn every_part_has_its_log_and_its_line() {
        let programs = [
            ("sidestream", "echo \"$@\"; echo noise >&2"),
            ("sidestream-bench", "echo \"$@\"; echo noise >&2"),
            ("conformance", "echo \"required: $SIDESTREAM_REQUIRE_CUDA\""),
            ("runtime", "echo costs"),
        ];
        let (code, said, folder) = bundle("bundle-all", &programs, &[]);
        let log = |name: &str| {
            fs::read_to_string(folder.join("results").join(name)).expect("it was written")
        };
        assert_eq!(log("conformance.log"), "required: 1\n");
        assert_eq!(log("devices.log"), "devices\nnoise\n");
        assert_eq!(log("bench.json"), "gpu --json\n");
        assert_eq!(log("bench.log"), "noise\n");
        assert_eq!(log("overlap.log"), "overlap --device cuda:0\nnoise\n");
        for (part, arguments) in [
            ("priorities", "overlap --background --device cuda:0"),
            ("requests", "bench requests --device cuda:0"),
            (
                "callers",
                "bench requests --closed 2048 --graphs --device cuda:0",
            ),
        ] {
            assert_eq!(log(&format!("{part}.log")), format!("{arguments}\nnoise\n"));
        }
        assert_eq!(log("runtime.log"), "costs\n");
        let expected = "conformance: exit code 0, conformance.log\ndevices: exit code 0, devices.log\n\
                        bench: exit code 0, bench.json\noverlap: exit code 0, overlap.log\n\
                        priorities: exit code 0, priorities.log\n\
                        requests: exit code 0, requests.log\n\
                        callers: exit code 0, callers.log\nruntime: exit code 0, runtime.log\n";
        assert_eq!((code, said.as_str()), (0, expected));
        assert_eq!(log("summary.txt"), expected);
        fs::remove_dir_all(folder).expect("it is there");
    }

    #[test]
    fn a_part_that_fails_or_is_missing_does_not_stop_the_others() {
        let programs = [
            ("conformance", "echo one test failed; exit 101"),
            ("runtime", "echo costs"),
        ];
        let parts = ["conformance", "devices", "runtime", "nonsense"];
        let (code, said, folder) = bundle("bundle-part", &programs, &parts);
        let expected = "conformance: exit code 101, conformance.log\none test failed\n\
                        devices: missing from the bundle\nruntime: exit code 0, runtime.log\n\
                        there is no part nonsense; there are conformance, devices, bench, overlap, \
                        priorities, requests, callers and runtime\n";
        assert_eq!((code, said.as_str()), (1, expected));
        fs::remove_dir_all(folder).expect("it is there");
    }
}
