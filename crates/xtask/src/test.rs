//! `cargo xtask test`: everything that has to pass before a change goes in.
//!
//! Cheap steps first. A failed step does not hide the later ones, except that nothing is tried after
//! a failed build. The last lines say what failed first and how to repeat just that.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cargo::{self, Workspace};
use crate::tidy;

/// The tests run with `profile.test`. Building the rest with it too means one build of everything
/// instead of two.
const PROFILE: [&str; 2] = ["--profile", "test"];

/// Runs all steps; whether all passed.
pub fn run(torch: bool) -> Result<bool> {
    let mut run = Run::new();
    run.cargo("format", &["fmt", "--all", "--check"])?;
    run.step("tidy", "cargo xtask tidy", |_| tidy::run())?;
    run.cargo(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    let targets = ["build", "--workspace", "--bins", "--examples"];
    if run.cargo("build", &[&targets[..], &PROFILE].concat())? {
        run.cargo(
            "tests",
            &["test", "--workspace", "--tests", "--no-fail-fast"],
        )?;
        run.cargo(
            "doc tests",
            &["test", "--workspace", "--doc", "--no-fail-fast"],
        )?;
        examples(&mut run)?;
        // Libraries only: the command and the library are both called `sidestream`, and rustdoc
        // would write both to one place.
        run.cargo("docs", &["doc", "--workspace", "--lib", "--no-deps"])?;
        let python: &[&str] = match torch {
            true => &["xtask", "python", "--torch"],
            false => &["xtask", "python"],
        };
        run.cargo("python", python)?;
    }
    Ok(run.finish())
}

/// Every example has to end well, on any machine.
fn examples(run: &mut Run) -> Result<()> {
    let examples = Workspace::read()?.targets("example");
    if examples.is_empty() {
        println!("\n== examples: there are none yet");
    }
    for example in examples {
        let (package, name) = (&*example.package, &*example.name);
        let args = ["run", "--package", package, "--example", name];
        run.cargo(&format!("example {name}"), &[&args[..], &PROFILE].concat())?;
        run.examples += 1;
    }
    Ok(())
}

/// What has happened so far.
struct Run {
    started: Instant,
    steps: usize,
    examples: usize,
    tests: Counts,
    failed: Vec<Failed>,
}

/// A step that failed, and the one command that repeats it.
struct Failed {
    name: String,
    repeat: String,
}

/// What the test programs said they ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
}

impl Run {
    fn new() -> Run {
        Run {
            started: Instant::now(),
            steps: 0,
            examples: 0,
            tests: Counts::default(),
            failed: Vec::new(),
        }
    }

    /// Runs cargo with these arguments as one step.
    fn cargo(&mut self, name: &str, args: &[&str]) -> Result<bool> {
        let docs = args[0] == "doc";
        let env = if docs {
            "RUSTDOCFLAGS='-D warnings' "
        } else {
            ""
        };
        let repeat = format!("{env}cargo {}", args.join(" "));
        self.step(name, &repeat, |counts| {
            let mut command = cargo::command(args);
            if docs {
                command.env("RUSTDOCFLAGS", "-D warnings");
            }
            let mut child = command
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot run `{repeat}`"))?;
            // Passed on line by line, so that a person sees progress and the tests can be counted.
            for line in child.stdout.take().into_iter().flat_map(|out| {
                // Output that is not UTF-8 belongs to a test that prints bytes: show the rest.
                BufReader::new(out).split(b'\n').map_while(Result::ok)
            }) {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                counts.add(&line);
            }
            let status = child
                .wait()
                .with_context(|| format!("cannot wait for `{repeat}`"))?;
            Ok(status.success())
        })
    }

    /// A header, the step, and its time.
    fn step(
        &mut self,
        name: &str,
        repeat: &str,
        work: impl FnOnce(&mut Counts) -> Result<bool>,
    ) -> Result<bool> {
        println!("\n== {name}: {repeat}");
        let started = Instant::now();
        let ok = work(&mut self.tests)?;
        let word = if ok { "ok" } else { "FAILED" };
        println!(
            "== {name}: {word}, {:.1} s",
            started.elapsed().as_secs_f64()
        );
        self.steps += 1;
        if !ok {
            self.failed.push(Failed {
                name: name.to_owned(),
                repeat: repeat.to_owned(),
            });
        }
        Ok(ok)
    }

    /// The last lines; whether all passed.
    fn finish(&self) -> bool {
        let seconds = self.started.elapsed().as_secs_f64();
        println!("\n{}", self.summary(seconds));
        self.failed.is_empty()
    }

    fn summary(&self, seconds: f64) -> String {
        let Counts { passed, failed } = self.tests;
        let ran = format!(
            "{passed} tests passed, {failed} failed, {} examples",
            self.examples
        );
        let steps = self.steps;
        let Some(first) = self.failed.first() else {
            return format!("PASSED: {steps} steps in {seconds:.0} s; {ran}.");
        };
        let names: Vec<&str> = self.failed.iter().map(|f| &*f.name).collect();
        format!(
            "FAILED: {} of {steps} steps in {seconds:.0} s ({}); {ran}.\nFailed first: {}. Repeat it: {}",
            names.len(),
            names.join(", "),
            first.name,
            first.repeat
        )
    }
}

impl Counts {
    /// Adds what a line says that ends a test program: `test result: ok. 12 passed; 0 failed; …`, or
    /// pytest's `1 failed, 12 passed in 3.45s`.
    fn add(&mut self, line: &str) {
        let line = line.trim();
        let rest = match line.strip_prefix("test result:") {
            Some(rest) => rest,
            None if is_end_of_pytest(line) => line,
            None => return,
        };
        let before = |word: &str| -> usize {
            let words: Vec<&str> = rest.split([' ', ';', ',']).collect();
            let at = words.iter().position(|w| *w == word);
            at.and_then(|at| words[at.checked_sub(1)?].parse().ok())
                .unwrap_or(0)
        };
        self.passed += before("passed");
        // What breaks before a test begins, pytest calls an error.
        self.failed += before("failed") + before("error") + before("errors");
    }
}

/// Whether a line ends as pytest's last does, in a time, and begins with a count.
fn is_end_of_pytest(line: &str) -> bool {
    let counted = line
        .split_once(' ')
        .is_some_and(|(count, _)| count.parse::<usize>().is_ok());
    let timed = line.rsplit_once(" in ").is_some_and(|(_, time)| {
        let time = time.split(' ').next().unwrap_or(time);
        time.strip_suffix('s')
            .is_some_and(|seconds| seconds.parse::<f64>().is_ok())
    });
    counted && timed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_counted() {
        let mut counts = Counts::default();
        counts.add("test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; finished in 1 s");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        counts.add("test passed ... ok");
        counts.add("test result:");
        assert_eq!(
            counts,
            Counts {
                passed: 15,
                failed: 2
            }
        );
    }

    #[test]
    fn results_of_pytest_are_counted() {
        let mut counts = Counts::default();
        counts.add("12 passed, 2 deselected in 3.45s");
        counts.add("1 failed, 3 passed, 2 errors in 61.00s (0:01:01)");
        counts.add("2 passed the test in time");
        counts.add("some were passed in 3s");
        assert_eq!(
            counts,
            Counts {
                passed: 15,
                failed: 3
            }
        );
    }

    #[test]
    fn the_first_failure_is_repeated_with_its_command() {
        let mut run = Run::new();
        assert_eq!(
            run.summary(0.0),
            "PASSED: 0 steps in 0 s; 0 tests passed, 0 failed, 0 examples."
        );
        for name in ["format", "clippy"] {
            run.failed.push(Failed {
                name: name.into(),
                repeat: format!("cargo {name}"),
            });
        }
        run.steps = 4;
        assert_eq!(
            run.summary(2.0),
            "FAILED: 2 of 4 steps in 2 s (format, clippy); 0 tests passed, 0 failed, 0 examples.\n\
             Failed first: format. Repeat it: cargo format"
        );
    }
}
