//! `sidestream run`: runs a stream program on the simulated GPU.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};
use sidestream::engine::Profile;
use sidestream::sim::Schedule;
use sidestream::trace::{Timeline, Trace, What};
use sidestream_program::{BadProgram, Expected, Level, Program, Run, run};

mod explore;

use crate::check::read;
use crate::device;
use crate::failure::{Failure, print};

/// Run a stream program on the simulated GPU and show what ran when
///
/// The format is described in docs/stream-programs.md. The exit code is 0 if all went as the
/// program expects, 1 if not, 2 if the input is at fault.
#[derive(Parser)]
pub struct Args {
    /// A stream program (YAML), or several under `cases:`
    program: PathBuf,
    /// Only the program of this name
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// The GPU: sim:h200, sim:a100, sim:a10g, sim:rtx4090 or sim:FILE.toml
    #[arg(long, default_value = "sim:h200")]
    device: String,
    /// in-order, seeded:N, adversarial, or adversarial:N (op N as late as it can be)
    #[arg(long, default_value = "in-order")]
    schedule: Schedule,
    /// Run it under this many legal schedules, and show two that disagree
    #[arg(long, value_name = "N", conflicts_with_all = ["schedule", "trace"],
          value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    explore: Option<u32>,
    /// Columns of the timeline
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: u16,
    /// Print one JSON object a program instead
    #[arg(long)]
    json: bool,
    /// Write the (one) program's run as a Chrome trace, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode, Failure> {
    let profile = device::open(&args.device)?;
    let document = read(&args.program)?;
    let wanted = |name: Option<&str>| args.case.is_none() || args.case.as_deref() == name;
    let programs: Vec<_> = document
        .programs
        .iter()
        .filter(|program| wanted(name_of(program)))
        .collect();
    if programs.is_empty() {
        return Err(Failure::input(format!(
            "{} holds no program called {}",
            args.program.display(),
            args.case.as_deref().unwrap_or_default()
        )));
    }
    if args.trace.is_some() && programs.len() > 1 {
        return Err(Failure::input(format!(
            "{} holds {} programs and --trace writes one; name it with --case",
            args.program.display(),
            programs.len()
        )));
    }
    let mut as_expected = true;
    for program in programs {
        as_expected &= match program {
            Ok(program) => match args.explore {
                Some(count) => explore::main(args, &profile, program, count as usize)?,
                None => one(args, &profile, program)?,
            },
            Err(bad) => refuse(args, bad)?,
        };
    }
    Ok(if as_expected {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn name_of(program: &Result<Program, Box<BadProgram>>) -> Option<&str> {
    match program {
        Ok(program) => Some(&program.name),
        Err(bad) => bad.name.as_deref(),
    }
}

/// A program that breaks the format is not run.
fn refuse(args: &Args, bad: &BadProgram) -> Result<bool, Failure> {
    if args.json {
        let line = json!({"schema": "sidestream.run/1", "name": bad.name,
                          "error": {"at": bad.at, "code": "BadProgram", "why": bad.to_string()}});
        print(format_args!("{line}\n"))?;
        return Ok(false);
    }
    Err(Failure::input(format!("{}: {bad}", args.program.display())))
}

fn one(args: &Args, profile: &Profile, program: &Program) -> Result<bool, Failure> {
    let ran = run(program, profile, args.schedule, false).map_err(|error| {
        let file = args.program.display();
        Failure::input(format!("{file}, program {}: {error}", program.name))
    })?;
    let trace = ran.trace(program);
    let judged = Judged::of(program, &ran);
    if let Some(path) = &args.trace {
        let file = std::fs::File::create(path).map_err(|e| Failure::file("create", path, &e))?;
        trace
            .write_json(file)
            .map_err(|e| Failure::file("write", path, &e))?;
    }
    if args.json {
        print(format_args!(
            "{}\n",
            as_json(args, program, &ran, &trace, &judged)
        ))?;
    } else {
        print(as_text(args, profile, program, &ran, &trace, &judged))?;
    }
    Ok(judged.unmet.is_empty())
}

/// What a run shows of a program's expectations. Whether it races is the checker's question.
struct Judged {
    unmet: Vec<String>,
    /// Whether the program expects anything that a run can show.
    asked: bool,
}

impl Judged {
    fn of(program: &Program, ran: &Run) -> Judged {
        let mut unmet: Vec<String> = ran
            .unmet
            .iter()
            .map(|unmet| format!("op {}: {}", unmet.op, unmet.why))
            .collect();
        let expected = program.expect.as_ref().map(|expect| &expect.verdict);
        let wanted = match expected {
            Some(Expected::Error { at, code }) => Some((*at, code.word())),
            _ => None,
        };
        let failed = ran
            .failed
            .map(|(at, misuse)| (Some(at), misuse.code.name()));
        if failed != wanted {
            let show = |failure: Option<(Option<usize>, &str)>| match failure {
                Some((Some(at), code)) => format!("op {at} fails with {code}"),
                Some((None, code)) => format!("the program fails with {code}"),
                None => "no call fails".to_owned(),
            };
            match ran.failed {
                Some((at, misuse)) => unmet.push(format!("op {at} fails: {misuse}")),
                None => unmet.push(format!(
                    "expected: {}; seen: {}",
                    show(wanted),
                    show(failed)
                )),
            }
        }
        let asked = program.level == Level::Runtime || wanted.is_some();
        Judged { unmet, asked }
    }
}

fn as_json(args: &Args, program: &Program, ran: &Run, trace: &Trace, judged: &Judged) -> Value {
    let failed = ran.failed.map(|(at, misuse)| {
        json!({"at": at, "code": misuse.code.name(), "number": misuse.code.number(),
               "rule": misuse.rule.to_string(), "why": misuse.why})
    });
    let stream_of = |id| {
        trace
            .streams
            .iter()
            .find(|s| s.id == id)
            .map(|s| s.name.as_str())
    };
    let work: Vec<Value> = trace
        .work
        .iter()
        .map(|w| {
            json!({"op": w.op.0, "device": w.device.0, "stream": stream_of(w.stream),
                   "engine": w.what.engine().map(|e| e.name()),
                   "start_ns": w.start_ns, "end_ns": w.end_ns})
        })
        .collect();
    json!({
        "schema": "sidestream.run/1",
        "name": program.name,
        "device": args.device,
        "schedule": args.schedule.to_string(),
        "time_ns": trace.end_ns(),
        "work": work,
        "error": failed,
        "as_expected": judged.unmet.is_empty(),
        "unmet": judged.unmet,
    })
}

fn as_text(
    args: &Args,
    profile: &Profile,
    program: &Program,
    ran: &Run,
    trace: &Trace,
    judged: &Judged,
) -> String {
    let any_work = trace
        .work
        .iter()
        .any(|w| !matches!(w.what, What::Wait { .. }));
    let mut out = format!(
        "{} on a simulated {}, {}: {:.1} us\n",
        program.name,
        profile.name,
        args.schedule,
        trace.end_ns() as f64 / 1e3
    );
    if any_work {
        out += &Timeline::new(trace, args.width.into()).to_string();
    } else {
        out += "  no device has anything to do\n";
    }
    if let Some((at, misuse)) = ran.failed {
        out += &format!("  op {at} fails, the run ends before it: {misuse}\n");
    }
    for unmet in &judged.unmet {
        out += &format!("  not as expected: {unmet}\n");
    }
    if judged.unmet.is_empty() && judged.asked {
        out += "  all expectations hold\n";
    }
    out
}
