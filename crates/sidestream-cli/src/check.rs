//! `sidestream check`: finds every pair of operations that nothing orders.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use sidestream::check::{Lint, LintCode, Names, Race, RaceKind, Reach, Severity, Verdict};
use sidestream::op::OpId;
use sidestream_program::{
    Checked, Document, Limits, Program, bad_json, check, checked_json, parse_bytes, written,
};

use crate::failure::{Failure, print};
use crate::input;

/// Find every race between streams, threads and the allocator
///
/// A stream program lists CUDA calls in the order in which they are made; docs/stream-programs.md
/// describes the format. It is judged by CUDA's documented rules and not run: no GPU is needed,
/// and a race is found even where it happens not to bite.
///
/// Exit code: 0 no race (there may be remarks), 1 a race, 2 a file that cannot be read or a program
/// that breaks the format, 3 a call that CUDA refuses, 4 only races of which CUDA leaves open
/// whether they can happen. If several apply, it is the first of 2, 1, 3, 4.
#[derive(Parser)]
pub struct Args {
    /// Stream programs: YAML files that hold one, or several under `cases:`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one line of JSON for each program instead of text
    #[arg(long)]
    json: bool,
}

/// What one program came to, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Clean,
    Warnings,
    Refused,
    Race,
    Unreadable,
}

impl Outcome {
    fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Outcome::Clean => 0,
            Outcome::Race => 1,
            Outcome::Unreadable => 2,
            Outcome::Refused => 3,
            Outcome::Warnings => 4,
        })
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode, Failure> {
    let mut worst = Outcome::Clean;
    for path in &args.files {
        let outcome = match read(path) {
            Ok(document) => one_file(args, path, &document)?,
            // One file that cannot be read does not keep the others from being checked.
            Err(failure) => {
                eprintln!("sidestream: {failure}");
                Outcome::Unreadable
            }
        };
        worst = worst.max(outcome);
    }
    Ok(worst.code())
}

/// Reads a document, whatever is in it.
pub fn read(path: &Path) -> Result<Document, Failure> {
    let document = parse_bytes(&input::read(path)?, &Limits::default())
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    if document.programs.is_empty() {
        return Err(Failure::input(format!(
            "{}: `cases` lists no program; add one with `name:` and `ops:`",
            path.display()
        )));
    }
    Ok(document)
}

fn one_file(args: &Args, path: &Path, document: &Document) -> Result<Outcome, Failure> {
    let mut worst = Outcome::Clean;
    for program in &document.programs {
        let outcome = match program {
            Ok(program) => {
                let checked = check(program);
                if args.json {
                    print(format_args!("{}\n", checked_json(program, &checked)))?;
                } else {
                    print(as_text(path, program, &checked))?;
                }
                outcome(&checked)
            }
            Err(bad) => {
                if args.json {
                    print(format_args!("{}\n", bad_json(bad)))?;
                } else {
                    print(format_args!("{}: {bad}\n", path.display()))?;
                }
                Outcome::Unreadable
            }
        };
        worst = worst.max(outcome);
    }
    Ok(worst)
}

fn outcome(checked: &Checked) -> Outcome {
    let races = &checked.report.races;
    match checked.report.verdict() {
        _ if races.iter().any(|race| race.severity == Severity::Error) => Outcome::Race,
        Verdict::Error => Outcome::Refused,
        Verdict::Race => Outcome::Warnings,
        Verdict::Clean => Outcome::Clean,
    }
}

fn as_text(path: &Path, program: &Program, checked: &Checked) -> String {
    let Checked { report, names } = checked;
    let mut out = format!(
        "{}: {}: {}\n",
        path.display(),
        program.name,
        summary(checked)
    );
    for race in &report.races {
        out += &race_text(program, names, race);
    }
    for lint in &report.lints {
        out += &lint_text(program, lint);
    }
    if let Some(refused) = &report.error {
        out += &format!(
            "\n  this call fails, and the check ends there\n    {}\n  {}\n",
            op_text(program, refused.op, ""),
            refused.misuse
        );
    }
    out
}

fn summary(checked: &Checked) -> String {
    let report = &checked.report;
    let errors = report
        .races
        .iter()
        .filter(|r| r.severity == Severity::Error)
        .count();
    let warnings = report.races.len() - errors;
    let mut parts = Vec::new();
    let mut count = |n: usize, one: &str, many: &str| match n {
        0 => {}
        1 => parts.push(format!("1 {one}")),
        n => parts.push(format!("{n} {many}")),
    };
    count(errors, "race", "races");
    count(
        warnings,
        "race that CUDA leaves open",
        "races that CUDA leaves open",
    );
    count(
        usize::from(report.error.is_some()),
        "call fails",
        "calls fail",
    );
    count(report.lints.len(), "remark", "remarks");
    if parts.is_empty() {
        "no race".to_owned()
    } else if errors + warnings == 0 && report.error.is_none() {
        format!("no race, {}", parts.join(", "))
    } else {
        parts.join(", ")
    }
}

fn race_text(program: &Program, names: &Names, race: &Race) -> String {
    let what = match race.buffer {
        Some(buffer) => format!("{} on {}", race.kind.code(), names.buffer(buffer)),
        None => race.kind.code().to_owned(),
    };
    let open = match race.severity {
        Severity::Error => "",
        Severity::Warn => " CUDA leaves open whether that call waits.",
    };
    let [first, second] = [race.chains.0, race.chains.1].map(|chain| names.chain(chain));
    let reach = match race.ordered_up_to {
        Reach::Nothing => format!("nothing makes {second} wait for {first}"),
        Reach::UpTo(op) => format!("{second} waits for {first} only up to op {}", op.0),
        Reach::LongAgo => format!("{second} waited for {first} only long ago"),
    };
    let again = match race.count {
        1 => String::new(),
        2 => "\n    and one more pair of the same two call sites".to_owned(),
        n => format!("\n    and {} more pairs of the same two call sites", n - 1),
    };
    format!(
        "\n  {what}: {}.{open}\n    {}\n    {}\n    {reach}{again}\n  fix: {}\n",
        meaning(race.kind),
        op_text(program, race.first, &format!(" on {first}")),
        op_text(program, race.second, &format!(" on {second}")),
        race.fix.text(names)
    )
}

/// What a kind of race means, for people who do not know the short name.
fn meaning(kind: RaceKind) -> &'static str {
    match kind {
        RaceKind::Uaf => "the memory is freed or handed on while it may still be used",
        RaceKind::Uba => "the memory is used before its allocation is known to the stream",
        RaceKind::HostRaw => "the host reads what the device may still be writing",
        RaceKind::HostWar => "the host writes what the device may still be reading",
        RaceKind::HostWaw => "the host writes what the device may still be writing",
        RaceKind::Raw => "the second may read before the first has written",
        RaceKind::War => "the second may write while the first still reads",
        RaceKind::Waw => "both write, in no certain order",
        RaceKind::Timing => "the time is asked before both events are known to be complete",
    }
}

fn lint_text(program: &Program, lint: &Lint) -> String {
    let meaning = match lint.code {
        LintCode::UnpinnedAsyncCopy => {
            "a copy of pageable memory may block the host and does not overlap; use pinned memory"
        }
        LintCode::DefaultStreamSerialization => {
            "work in the default stream makes one stream wait for another; use a stream of your own"
        }
        LintCode::WaitOnUnrecordedEvent => {
            "the event has not been recorded yet, so this waits for nothing; record it first"
        }
        LintCode::SyncInLoop => {
            "the host waits in a loop, so nothing is queued ahead; wait once after it"
        }
        LintCode::ForeignDeviceLaunch => {
            "the stream belongs to another than the current device, which fails before CUDA 13"
        }
        LintCode::StreamPoolAlias => {
            "the pool holds fewer streams than were asked for, so some of them are the same one"
        }
    };
    format!(
        "\n  {}: {meaning}\n    {}\n",
        lint.code.code(),
        op_text(program, lint.op, "")
    )
}

/// An op: where it stands, where it runs, and what it says.
fn op_text(program: &Program, id: OpId, place: &str) -> String {
    let Some(op) = program.ops.get(id.0 as usize) else {
        return format!("op {}{place}", id.0);
    };
    let text = written(program, op);
    let call = text.strip_prefix("do: ").unwrap_or(&text);
    format!("op {} (line {}){place}: {call}", id.0, op.line)
}
