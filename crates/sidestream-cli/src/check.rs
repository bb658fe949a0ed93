//! `sidestream check`: finds every unordered pair of operations that conflict.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf, absolute};

use clap::Parser;
use clap::builder::{PathBufValueParser, TypedValueParser};
use sidestream::check::{MEMORY_BYTES, Replay, Severity, Verdict, counted, one_line, replay};
use sidestream::log::{MAGIC, Reader};
use sidestream::op::OpId;
use sidestream::trace::{Trace, embedded_log, recorded};
use sidestream_program::{
    Checked, Document, Limits, Program, bad_json, check, checked_json, parse_bytes, unreadable_json,
};

use crate::failure::{Exit, Failure, print, shown, tell};
use crate::suppress::{Suppressed, Suppressions};
use crate::{input, output, program, reduce, text};

/// Find races between streams, host threads and the allocator
///
/// A stream program lists CUDA calls in the order in which they are made; docs/reference/stream-programs.md describes the
/// format. The check applies CUDA's documented rules and does not run the program: no GPU is needed, and a race is found even
/// where a run would happen to give the right result. The op log of a run (docs/reference/op-log.md), and a trace that carries
/// one, are checked like programs. In a Markdown file, the code blocks are checked: each stream program, and each PyTorch
/// program, which then runs on simulated GPUs.
///
/// Exit code: 0 no race (there may be remarks), 1 a race, 2 a file that cannot be read or a program that breaks the format, 3 a
/// call that CUDA refuses or a code block that cannot be checked completely, 4 only races of which it is
/// not certain that they can happen. If several apply, it is the first of 2, 1, 3, 4.
///
/// `sidestream check -- PROGRAM` runs any CUDA program on Linux, and checks the calls that it makes. Its exit code is the
/// program's own; where that is 0, it is 1 if there is a race that is more than a warning, else 2 if the program was not heard.
#[derive(Parser)]
pub struct Args {
    /// Stream programs (YAML, one or several under `cases:`), op logs, traces that carry one, or Markdown files; - is standard
    /// input
    #[arg(required_unless_present = "program", value_name = "FILE")]
    #[arg(conflicts_with_all = ["exact", "only", "light", "provoke", "stacks"])]
    #[arg(value_parser = PathBufValueParser::new().try_map(named))]
    files: Vec<PathBuf>,
    /// Print one line of JSON for each program instead of text
    #[arg(long)]
    json: bool,
    /// Write the run as a Chrome trace, which ui.perfetto.dev shows; only for one op log that was recorded with times
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the shortest stream program that still has the first race of the report; only for one op log, trace or stream
    /// program
    #[arg(long, value_name = "FILE", conflicts_with = "suppress")]
    reduce: Option<PathBuf>,
    /// Leave out known findings. Each line of the file is FILE:LINE REASON, function:NAME REASON or kernel:NAME REASON, and
    /// leaves out the findings about a call in that line, in that function or in what it calls, or a launch of that kernel.
    /// Not for Markdown files
    #[arg(long, value_name = "FILE")]
    suppress: Option<PathBuf>,
    #[arg(skip)]
    known: Suppressions,
    /// The Python interpreter that runs the programs in a Markdown file; it needs the packages `sidestream` and PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    #[command(flatten)]
    options: program::Options,
    /// After the report of a PROGRAM, show the native stack of each call that races
    #[arg(long, requires = "program", conflicts_with_all = ["light", "json"])]
    stacks: bool,
    /// Any CUDA program with its arguments: it runs on its GPU, and is checked by the calls that it makes
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["files", "trace", "reduce"])]
    program: Vec<OsString>,
}

/// The result of checking one program, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    Clean,
    Warnings,
    Refused,
    Race,
    Unreadable,
}

impl Outcome {
    fn code(self) -> Exit {
        match self {
            Outcome::Clean => 0,
            Outcome::Race => 1,
            Outcome::Unreadable => 2,
            Outcome::Refused => 3,
            Outcome::Warnings => 4,
        }
    }
}

/// Refuses what was meant as the value of `--exact`, which needs `=`, since a file may follow the option.
fn named(path: PathBuf) -> Result<PathBuf, String> {
    match path.to_str() {
        Some(word @ ("first" | "all")) if !path.exists() => Err(format!(
            "there is no such file; if it says which launches to watch, write --exact={word}"
        )),
        _ => Ok(path),
    }
}

/// Runs the command.
pub fn main(mut args: Args) -> Result<Exit, Failure> {
    if let Some(path) = &args.suppress {
        if let Some(text) = args.files.iter().find(|path| text::is_text(path)) {
            return Err(Failure::input(format!(
                "{} is a Markdown file, and Markdown files cannot have suppressions; check it without --suppress",
                shown(text)
            )));
        }
        args.known = Suppressions::read(path)?;
    }
    let args = &args;
    if !args.program.is_empty() {
        let (json, stacks) = (args.json, args.stacks);
        return program::check(&args.program, &args.options, &args.known, json, stacks);
    }
    refuse_overwriting(args)?;
    let mut worst = Outcome::Clean;
    for path in &args.files {
        // One file that cannot be read does not keep the others from being checked.
        let checked = refuse_source(path)
            .and_then(|()| refuse_folder(path))
            .and_then(|()| one_file(args, path));
        let outcome = match checked {
            Ok(outcome) => outcome,
            Err(failure) => {
                tell(format_args!("sidestream: {failure}"));
                Outcome::Unreadable
            }
        };
        if outcome == Outcome::Unreadable {
            args.known.is_partial.set(true);
        }
        worst = worst.max(outcome);
    }
    args.known.tell_unused();
    Ok(worst.code())
}

/// Refuses the source of a program: `sidestream check` and the checks of running programs are easily confused.
fn refuse_source(path: &Path) -> Result<(), Failure> {
    let file = shown(path);
    let (language, instead) = match path.extension().and_then(|end| end.to_str()) {
        Some("py") => (
            "Python",
            format!("`python -m sidestream.check {file}` checks a PyTorch program"),
        ),
        Some("rs") => (
            "Rust",
            "in it, `device.checked` checks a program while it runs, and `device.record` writes an op log, which this \
             command checks too (docs/guide/rust.md)"
                .to_owned(),
        ),
        _ => return Ok(()),
    };
    Err(Failure::input(format!(
        "{file} is a {language} program, and this command checks stream programs; {instead}"
    )))
}

/// Refuses several input files with an option that writes one file, and an output file that is also an input.
fn refuse_overwriting(args: &Args) -> Result<(), Failure> {
    let written = [
        ("--trace", "the run of one log", &args.trace),
        ("--reduce", "the reduced program of one run", &args.reduce),
    ];
    let given = written.iter().find(|(_, _, to)| to.is_some());
    if let (Some((option, what, _)), [_, _, ..]) = (given, &args.files[..]) {
        return Err(Failure::input(format!(
            "{option} writes {what}, and there are several files; give one"
        )));
    }
    let written = written.map(|(option, _, to)| (option, to));
    output::refuse_overwriting(&args.files, "the file that is checked", written)
}

/// Refuses a folder; the shell can list the files in it.
fn refuse_folder(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let path = shown(path);
        let path = path.trim_end_matches('/');
        Err(Failure::input(format!(
            "{path} is a folder; name the files in it, as in `sidestream check {path}/*.yaml`"
        )))
    } else {
        Ok(())
    }
}

/// The kind of a file, by its first bytes.
enum Source {
    Program,
    /// A format that this command does not read.
    Binary,
    Log,
    Trace,
    Gzip,
}

fn one_file(args: &Args, path: &Path) -> Result<Outcome, Failure> {
    if text::is_text(path) {
        if args.trace.is_some() || args.reduce.is_some() {
            return Err(Failure::input(format!(
                "{} is a Markdown file, and --trace and --reduce work on one run; give the log or the program",
                shown(path)
            )));
        }
        return text::check_text(path, &args.python, args.json);
    }
    let mut file = BufReader::with_capacity(64 * 1024, input::open(path)?);
    let start = file
        .fill_buf()
        .map_err(|e| Failure::file("read", path, &e))?;
    match source(start) {
        Source::Program if args.trace.is_some() => Err(Failure::input(format!(
            "{} is a program, which has no times until it runs; use `sidestream run --trace`",
            shown(path)
        ))),
        Source::Program => match document(path, file) {
            Ok(document) => programs(args, path, &document),
            Err(failure) => {
                // With `--json`, a file without a program also gets one line, so that a program reading the output finds a
                // result for each file.
                if args.json {
                    print(format_args!("{}\n", unreadable_json(&failure.to_string())))?;
                }
                Err(failure)
            }
        },
        Source::Binary => Err(no_text(path)),
        Source::Log if args.trace.is_some() || args.reduce.is_some() => {
            let bytes = input::read_log(path, file)?;
            log(args, path, &bytes[..])?.and_written(args, path, &bytes)
        }
        Source::Log => log(args, path, file)?.outcome(path),
        Source::Gzip => Err(Failure::input(format!(
            "{}: {}; to check the op log in a trace of `sidestream run --trace`, unpack it with gunzip first",
            shown(path),
            compressed(path)
        ))),
        Source::Trace => {
            let found =
                embedded_log(file).map_err(|e| Failure::input(format!("{}: {e}", shown(path))))?;
            let bytes = found.ok_or_else(|| {
                Failure::input(format!(
                    "{}: the trace carries no op log, and times alone prove no order; write one with \
                     `sidestream run --trace` or `sidestream check --trace`; `sidestream diagnose` says why the GPU \
                     idled in this one",
                    shown(path)
                ))
            })?;
            log(args, path, &bytes[..])?.and_written(args, path, &bytes)
        }
    }
}

fn source(start: &[u8]) -> Source {
    let has = |word: &[u8]| start.windows(word.len()).any(|bytes| bytes == word);
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    if start.starts_with(&MAGIC) {
        Source::Log
    } else if start.starts_with(&[0x1f, 0x8b]) {
        Source::Gzip
    } else if start.contains(&0) {
        Source::Binary
    } else if matches!(first, Some(b'{' | b'[')) && (has(b"\"traceEvents\"") || has(b"\"ph\"")) {
        Source::Trace
    } else {
        Source::Program
    }
}

/// The formats that this command reads, for the error message about any other format.
const READ: &str = "stream programs (YAML, docs/reference/stream-programs.md), op logs, traces that carry one, and Markdown files (.md)";

fn no_text(path: &Path) -> Failure {
    // Users often pass files from Nsight Systems.
    let instead = match path.extension().and_then(|end| end.to_str()) {
        Some("sqlite" | "nsys-rep") => {
            "; `sidestream diagnose` says why a GPU idled in a trace of Nsight Systems"
        }
        _ => "",
    };
    Failure::input(format!(
        "{} is neither a text file nor an op log; this command reads {READ}{instead}",
        shown(path)
    ))
}

/// The result of checking an op log.
struct Logged {
    outcome: Outcome,
    /// The message about a log that was cut off.
    cut: Option<String>,
}

fn log(args: &Args, path: &Path, bytes: impl Read) -> Result<Logged, Failure> {
    let failure = |error| Failure::input(format!("{}: {error}", shown(path)));
    let Replay {
        report,
        names,
        sites,
        ops,
        cut,
    } = Reader::new(bytes)
        .and_then(|reader| replay(reader, MEMORY_BYTES))
        .map_err(failure)?;
    let name = path.file_stem().unwrap_or(path.as_os_str());
    let mut checked = Checked {
        name: name.to_string_lossy().into_owned(),
        report,
        names,
        undeclared: Vec::new(),
        sites,
    };
    let suppressed = take_out(args, path, None, &mut checked);
    let races = checked.report.races.len();
    // The part before the cut is worth reporting only if it has a race: without one, the rest may still have a race.
    if cut.is_none() || (ops > 0 && races > 0) {
        show(args, path, None, &checked, &suppressed)?;
    }
    let cut = cut.map(|cut| {
        let (ops, races) = (counted(ops, "operation"), counted(races as u64, "race"));
        format!("{cut}; found in the {ops} before it: {races}")
    });
    let outcome = outcome(&checked);
    Ok(Logged { outcome, cut })
}

impl Logged {
    fn outcome(self, path: &Path) -> Result<Outcome, Failure> {
        match self.cut {
            None => Ok(self.outcome),
            Some(cut) => Err(Failure::input(format!("{}: {cut}", shown(path)))),
        }
    }

    /// Writes the reduced program, and the run as a trace, if they were asked for.
    fn and_written(self, args: &Args, path: &Path, log: &[u8]) -> Result<Outcome, Failure> {
        if let Some(to) = &args.reduce {
            reduce::write(log, path, to, args.json)?;
        }
        let Some(to) = &args.trace else {
            return self.outcome(path);
        };
        let run = Reader::new(log)
            .and_then(|reader| recorded(reader, MEMORY_BYTES))
            .map_err(|error| Failure::input(format!("{}: {error}", shown(path))))?;
        let (ops, is_timed) = (run.ops, run.timed > 0);
        if is_timed {
            // With its log, the trace can be checked again.
            let log = Some(log.to_vec());
            output::write_trace(&Trace { log, ..run.trace }, to)?;
        }
        let outcome = self.outcome(path)?;
        if !is_timed {
            return Err(Failure::input(format!(
                "{}: none of the {ops} operations of the log has times, so there is no trace to write; \
                 record the run with times (`Recorder::with_times`)",
                shown(path)
            )));
        }
        Ok(outcome)
    }
}

/// Reads a document of programs to run.
pub fn read(path: &Path) -> Result<Document, Failure> {
    let mut file = BufReader::with_capacity(64 * 1024, input::open(path)?);
    let start = file
        .fill_buf()
        .map_err(|e| Failure::file("read", path, &e))?;
    match source(start) {
        Source::Program => document(path, file),
        Source::Binary => Err(Failure::input(format!(
            "{} is not a text file, as a stream program must be (YAML, docs/reference/stream-programs.md)",
            shown(path)
        ))),
        Source::Gzip => Err(Failure::input(format!(
            "{}: {}; a stream program is a text file; unpack it with gunzip first",
            shown(path),
            compressed(path)
        ))),
        Source::Trace => Err(Failure::input(format!(
            "{0} is a trace, not a stream program: `sidestream diagnose {0}` says why the GPU idled in it, and \
             `sidestream check {0}` checks one that `sidestream run --trace` wrote",
            shown(path)
        ))),
        Source::Log => Err(Failure::input(format!(
            "{0} is not a program but the record of a run, which can be checked but not run again; use \
             `sidestream check {0}`",
            shown(path)
        ))),
    }
}

/// Returns the hint for a compressed file: the traces of PyTorch's profiler often are compressed.
fn compressed(path: &Path) -> String {
    let path = shown(path);
    format!(
        "the file is compressed; if it is a trace, `sidestream diagnose {path}` says why the GPU idled in it"
    )
}

fn document(path: &Path, file: impl Read) -> Result<Document, Failure> {
    let bytes = input::read(path, file)?;
    let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    let is_other = !(has(b"ops") || has(b"cases") || bytes.trim_ascii().is_empty());
    let refused = |why: &dyn Display| {
        // Advice on fixing one line does not help a user who gave another kind of file.
        let other = if is_other {
            "; it has neither `ops:` nor `cases:`, so it may not be a stream program (YAML, docs/reference/stream-programs.md); \
             `sidestream check` reads op logs and Markdown files (.md) too, and `sidestream diagnose` traces"
        } else {
            ""
        };
        Failure::input(format!("{}: {why}{other}", shown(path)))
    };
    let document = parse_bytes(&bytes, &Limits::default()).map_err(|error| refused(&error))?;
    if let (true, [Err(bad)]) = (is_other, &document.programs[..]) {
        return Err(refused(bad));
    }
    if document.programs.is_empty() {
        return Err(Failure::input(format!(
            "{}: `cases` lists no program; add one with `name:` and `ops:`",
            shown(path)
        )));
    }
    Ok(document)
}

fn programs(args: &Args, path: &Path, document: &Document) -> Result<Outcome, Failure> {
    if let (Some(_), [_, _, ..]) = (&args.reduce, &document.programs[..]) {
        return Err(Failure::input(format!(
            "{}: --reduce takes one program, and `cases` lists several; give one in a file of its own",
            shown(path)
        )));
    }
    let mut worst = Outcome::Clean;
    for program in &document.programs {
        let outcome = match program {
            Ok(program) => {
                let mut checked = check(program);
                let suppressed = take_out(args, path, Some(program), &mut checked);
                show(args, path, Some(program), &checked, &suppressed)?;
                if let Some(to) = &args.reduce {
                    reduce::write_of_program(program, path, to, args.json)?;
                }
                outcome(&checked)
            }
            Err(bad) => {
                let name = bad.name.as_deref();
                let name = name.map_or(String::new(), |name| format!(" {}:", one_line(name)));
                let text = || format!("{}:{name} {bad}\n", shown(path));
                output::say(args.json, || bad_json(bad), text)?;
                Outcome::Unreadable
            }
        };
        worst = worst.max(outcome);
    }
    Ok(worst)
}

/// Takes suppressed findings out of a report: by the lines of a program, and by call sites.
fn take_out<'a>(
    args: &'a Args,
    path: &Path,
    program: Option<&Program>,
    checked: &mut Checked,
) -> Suppressed<'a> {
    let file = absolute(path).unwrap_or_else(|_| path.to_owned());
    let line = |id: OpId| {
        let ops = &program?.ops;
        let op = ops.get(id.0 as usize)?;
        // Findings of ops of one site are one finding, which is of no line.
        let is_of_line =
            op.site.is_none() || ops.iter().filter(|it| it.site == op.site).count() == 1;
        is_of_line.then(|| format!("{}:{}", file.display(), op.line))
    };
    // Sites are relative to a folder that is not known.
    let folder = Path::new("");
    let sites = &checked.sites;
    args.known
        .take_out(&mut checked.report, folder, |op, site| {
            let site = site.and_then(|site| sites.get(site.0 as usize).cloned());
            line(op).into_iter().chain(site).collect()
        })
}

fn show(
    args: &Args,
    path: &Path,
    program: Option<&Program>,
    checked: &Checked,
    suppressed: &Suppressed<'_>,
) -> Result<(), Failure> {
    let text = || {
        let mut text = format!("{}: {}", shown(path), checked.page(program));
        suppressed.add_to_text(&mut text, &checked.report);
        text
    };
    let json = || {
        let mut data = checked_json(checked);
        suppressed.add_to(&mut data);
        data
    };
    output::say(args.json, json, text)
}

/// Returns the outcome of a check.
pub fn outcome(checked: &Checked) -> Outcome {
    let races = &checked.report.races;
    match checked.report.verdict() {
        _ if races.iter().any(|race| race.severity() == Severity::Error) => Outcome::Race,
        Verdict::Error => Outcome::Refused,
        Verdict::Race => Outcome::Warnings,
        Verdict::Clean => Outcome::Clean,
    }
}
