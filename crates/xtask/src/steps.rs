//! Tasks of several steps: each is printed with its command and its time, and the last lines name what took longest,
//! what failed first and how to repeat just that.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cargo::{self, Workspace};
use crate::test_programs::{self, Built};

/// All crates but the benchmarks, which are only linted here: they need crates that tests do not.
pub const TESTED: [&str; 3] = ["--workspace", "--exclude", "sidestream-benches"];

/// The number of the slowest tests that are named.
const SLOWEST: usize = 10;
/// A test that takes less than this many seconds is never named.
const SLOW_S: f64 = 0.5;

/// The results so far.
pub struct Run {
    started: Instant,
    target: PathBuf,
    steps: Vec<Step>,
    examples: usize,
    said: Said,
    failed: Vec<Failed>,
}

/// A finished step: its wall-clock time, and its processor time over all cores.
#[derive(Clone, Debug, Default)]
struct Step {
    name: String,
    seconds: f64,
    processor_s: f64,
}

/// A step that failed, and the one command that repeats it.
struct Failed {
    name: String,
    repeat: String,
}

/// The results that test programs reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    passed: usize,
    failed: usize,
    /// Seconds and names of the slow tests.
    slow: Vec<(f64, String)>,
}

impl Run {
    pub fn new() -> Result<Run> {
        Ok(Run::in_target(Workspace::read()?.target_dir))
    }

    fn in_target(target: PathBuf) -> Run {
        Run {
            started: Instant::now(),
            target,
            steps: Vec::new(),
            examples: 0,
            said: Said::default(),
            failed: Vec::new(),
        }
    }

    /// Builds all tests, examples and the command; `None` if that failed.
    pub fn build(&mut self) -> Result<Option<Built>> {
        let args = [&["test", "--no-run"], &TESTED[..]].concat();
        let mut built = None;
        self.step("build", &format!("cargo {}", args.join(" ")), |_| {
            built = test_programs::build(&args)?;
            Ok(built.is_some())
        })?;
        Ok(built)
    }

    /// Runs all test programs, with these variables in their environment. Each failing program is a separate failure,
    /// with its own command.
    pub fn tests(&mut self, built: &Built, environment: &[(&str, &str)]) -> Result<()> {
        let logs = self.target.join("tests");
        let set: String = environment
            .iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        let mut failed = Vec::new();
        let repeat = format!(
            "{set}cargo test {} --tests --no-fail-fast",
            TESTED.join(" ")
        );
        self.step("tests", &repeat, |said| {
            test_programs::run(&built.tests, environment, &logs, |ran| {
                let selection = &ran.program.selection;
                println!("-- {selection}\n{}", ran.output.trim());
                ran.output.lines().for_each(|line| said.add(line));
                if !ran.succeeded {
                    failed.push(Failed {
                        name: format!("tests of {selection}"),
                        repeat: format!("{set}cargo test {selection}"),
                    });
                }
            })?;
            Ok(failed.is_empty())
        })?;
        if !failed.is_empty() {
            // The failures of single programs are more specific than the step's failure, which was just recorded.
            self.failed.pop();
            self.failed.append(&mut failed);
        }
        Ok(())
    }

    /// Runs all examples. Each must succeed, on any machine.
    pub fn examples(&mut self, built: &Built) -> Result<()> {
        for example in &built.examples {
            let repeat = format!("cargo run {}", example.selection);
            self.step(&format!("example {}", example.name), &repeat, |_| {
                test_programs::example(example)
            })?;
            self.examples += 1;
        }
        Ok(())
    }

    /// Runs cargo with these arguments as one step.
    pub fn cargo(&mut self, name: &str, args: &[&str]) -> Result<bool> {
        let docs = args[0] == "doc";
        let env = if docs {
            "RUSTDOCFLAGS='-D warnings' "
        } else {
            ""
        };
        let repeat = format!("{env}cargo {}", args.join(" "));
        self.step(name, &repeat, |said| {
            let mut command = cargo::command(args);
            if docs {
                command.env("RUSTDOCFLAGS", "-D warnings");
            }
            let mut child = command
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot run `{repeat}`"))?;
            // The output is passed on line by line, so that progress is visible and the tests can be counted.
            for line in child.stdout.take().into_iter().flat_map(|out| {
                // Output that is not UTF-8 belongs to a test that prints bytes: the rest is shown.
                BufReader::new(out).split(b'\n').map_while(Result::ok)
            }) {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                said.add(&line);
            }
            let status = child
                .wait()
                .with_context(|| format!("cannot wait for `{repeat}`"))?;
            Ok(status.success())
        })
    }

    /// Prints a header, runs the step, and prints its time.
    pub fn step(
        &mut self,
        name: &str,
        repeat: &str,
        work: impl FnOnce(&mut Said) -> Result<bool>,
    ) -> Result<bool> {
        println!("\n== {name}: {repeat}");
        let (started, before_s) = (Instant::now(), processor_s());
        let ok = work(&mut self.said)?;
        let word = if ok { "ok" } else { "FAILED" };
        let seconds = started.elapsed().as_secs_f64();
        let processor_s = processor_s() - before_s;
        println!("== {name}: {word}, {seconds:.1} s, {processor_s:.1} s of processor time");
        self.steps.push(Step {
            name: name.to_owned(),
            seconds,
            processor_s,
        });
        if !ok {
            self.failed.push(Failed {
                name: name.to_owned(),
                repeat: repeat.to_owned(),
            });
        }
        Ok(ok)
    }

    /// Prints the last lines. Returns whether all steps passed.
    pub fn finish(&self) -> bool {
        print!("\n{}", self.said.slowest());
        print!("{}", slowest_steps(&self.steps));
        println!(
            "{} has {:.1} GB",
            self.target.display(),
            bytes_below(&self.target) as f64 / 1e9
        );
        println!("{}", self.summary(self.started.elapsed().as_secs_f64()));
        self.failed.is_empty()
    }

    fn summary(&self, seconds: f64) -> String {
        let Said { passed, failed, .. } = self.said;
        let ran = format!(
            "{passed} tests passed, {failed} failed, {} examples",
            self.examples
        );
        let add = |sum: f64, step: &Step| sum + step.processor_s;
        let processor_s = self.steps.iter().fold(0.0, add);
        let steps = format!(
            "{} steps in {seconds:.0} s, {processor_s:.0} s of processor time",
            self.steps.len()
        );
        let Some(first) = self.failed.first() else {
            return format!("PASSED: {steps}; {ran}.");
        };
        let names: Vec<&str> = self.failed.iter().map(|f| &*f.name).collect();
        format!(
            "FAILED: {} of {steps} ({}); {ran}.\nFailed first: {}. Repeat it: {}",
            names.len(),
            names.join(", "),
            first.name,
            first.repeat
        )
    }
}

/// The steps by duration, the longest first.
fn slowest_steps(steps: &[Step]) -> String {
    let mut steps: Vec<_> = steps.iter().filter(|step| step.seconds >= 1.0).collect();
    steps.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let shown = steps.iter().map(|step| {
        format!(
            "{} {:.0} s ({:.0} s)",
            step.name, step.seconds, step.processor_s
        )
    });
    let shown: Vec<_> = shown.collect();
    format!("steps (processor time): {}\n", shown.join(", "))
}

/// Processor time of this program and of its children that have ended; 0 if the system does not report it as Linux
/// does.
fn processor_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in parentheses, may contain anything. After it, the 12th word and the next three are
    // hundredths of a second: user and kernel time of the program, and of its children.
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let words = after_name.split_whitespace().skip(11).take(4);
    words
        .filter_map(|word| word.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// The total size in bytes of the files in a folder, as far as they can be read. Links are not counted.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(is) if is.is_dir() => bytes_below(&entry.path()),
        Ok(is) if is.is_file() => is.len(),
        _ => 0,
    });
    bytes.sum()
}

impl Said {
    /// Adds the counts in the last line of a test program: `test result: ok. 12 passed; 0 failed; …`, or pytest's `1
    /// failed, 12 passed in 3.45s`; and the time that a line reports for a test.
    fn add(&mut self, line: &str) {
        let line = line.trim();
        if let Some(slow) = time_of(line).filter(|(seconds, _)| *seconds >= SLOW_S) {
            self.slow.push(slow);
        }
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
        // Pytest counts what fails before a test begins as an error.
        self.failed += before("failed") + before("error") + before("errors");
    }

    /// The slowest tests, one per line.
    fn slowest(&self) -> String {
        let mut slow: Vec<_> = self.slow.iter().collect();
        slow.sort_by(|a, b| b.0.total_cmp(&a.0));
        let lines = slow
            .iter()
            .take(SLOWEST)
            .map(|(seconds, name)| format!("{seconds:6.1} s  {name}\n"));
        let lines: String = lines.collect();
        if lines.is_empty() {
            String::new()
        } else {
            format!("slowest tests:\n{lines}")
        }
    }
}

/// The seconds that a test took, and its name: `test name ... ok <1.234s>`, or pytest's `1.23s call
/// tests/test_a.py::name`.
fn time_of(line: &str) -> Option<(f64, String)> {
    let seconds = |text: &str| text.strip_suffix('s')?.parse::<f64>().ok();
    if let Some(rest) = line.strip_prefix("test ") {
        let (name, rest) = rest.split_once(" ... ")?;
        let time = rest.strip_suffix('>')?.rsplit('<').next()?;
        return Some((seconds(time)?, name.to_owned()));
    }
    let mut words = line.split_whitespace();
    let time = seconds(words.next()?)?;
    let phase = words.next()?;
    let name = words.next().filter(|name| name.contains("::"))?;
    ["call", "setup", "teardown"]
        .contains(&phase)
        .then(|| (time, name.to_owned()))
}

/// Whether a line ends like pytest's last line, in a time, and begins with a count.
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
        let mut counts = Said::default();
        counts.add("test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; finished in 1 s");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        counts.add("test passed ... ok");
        counts.add("test result:");
        assert_eq!(
            counts,
            Said {
                passed: 15,
                failed: 2,
                slow: Vec::new()
            }
        );
    }

    #[test]
    fn results_of_pytest_are_counted() {
        let mut counts = Said::default();
        counts.add("12 passed, 2 deselected in 3.45s");
        counts.add("1 failed, 3 passed, 2 errors in 61.00s (0:01:01)");
        counts.add("2 passed the test in time");
        counts.add("some were passed in 3s");
        assert_eq!(
            counts,
            Said {
                passed: 15,
                failed: 3,
                slow: Vec::new()
            }
        );
    }

    #[test]
    fn the_slowest_tests_are_named() {
        let mut said = Said::default();
        said.add("test slow::one ... ok <1.250s>");
        said.add("test quick ... ok <0.001s>");
        said.add("test broken ... FAILED <12.000s>");
        said.add("2.50s call     tests/test_a.py::test_b[sim:h200]");
        said.add("test of something ... that is not a test");
        said.add("3.5s later");
        assert_eq!(
            said.slowest(),
            "slowest tests:\n  12.0 s  broken\n   2.5 s  tests/test_a.py::test_b[sim:h200]\n   1.2 s  slow::one\n"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_takes_time_of_the_processor() {
        let before_s = processor_s();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done";
        let status = std::process::Command::new("sh").args(["-c", busy]).status();
        assert!(status.expect("the shell runs").success());
        assert!(processor_s() > before_s);
    }

    #[test]
    fn the_first_failure_is_repeated_with_its_command() {
        let mut run = Run::in_target(PathBuf::new());
        assert_eq!(
            run.summary(0.0),
            "PASSED: 0 steps in 0 s, 0 s of processor time; 0 tests passed, 0 failed, 0 examples."
        );
        for name in ["format", "clippy"] {
            run.failed.push(Failed {
                name: name.into(),
                repeat: format!("cargo {name}"),
            });
        }
        let step = Step {
            processor_s: 1.5,
            ..Step::default()
        };
        run.steps = vec![step; 4];
        assert_eq!(
            run.summary(2.0),
            "FAILED: 2 of 4 steps in 2 s, 6 s of processor time (format, clippy); 0 tests passed, 0 failed, 0 examples.\n\
             Failed first: format. Repeat it: cargo format"
        );
    }
}
