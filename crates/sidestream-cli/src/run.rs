//! `sidestream run`: runs a stream program on a simulated GPU, or on a real one.

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};
use sidestream::engine::Profile;
use sidestream::sim::Schedule;
use sidestream::trace::{Trace, What};
use sidestream_program::{
    BadProgram, CONNECTIONS, Document, Expected, Level, Program, Run, check, mark_steps, record,
    run_connected, unmet as expected_of_check,
};

mod explore;
mod real;

use crate::check::read;
use crate::device::{self, Named};
use crate::failure::{Exit, Failure, print, shown, tell};
use crate::output;
use crate::width::Width;

/// Run a stream program on a GPU, simulated or real, and show what ran when
///
/// A stream program lists CUDA calls in the order in which they are made; docs/reference/stream-programs.md
/// describes the format. For example:
///
///   name: result_read_too_early
///   ops:
///   - {do: kernel, s: s1, w: [A]}
///   - {do: copy_async, s: s1, from: A, to: H}
///   - {do: host_read, buf: H}
///
/// The timeline has a lane for each stream and, in brackets, for each engine; a host thread has one where it spends long
/// reading or writing memory. A bar too short for its name is a letter: U upload, K kernel, D download, P copy between devices,
/// C other copy, M memset, H host function. A run without `expect:` says that the
/// program races, but not where; `sidestream check` does.
///
/// On a real GPU (--device cuda:0) each op is the CUDA call that it names, and device n of the program is the n-th from there.
/// Times are from events around each operation, which cost the device about 2 µs each. A kernel is one block that reads what
/// `r` lists, takes at least as long as on sim:h200 and then writes what `w` lists; the contents of the buffers at the end, and
/// what the host read, are compared with the same run on sim:h200. Refused, before anything runs: programs of level `runtime`
/// and the ops that need it, begin_capture and end_capture, calls that CUDA refuses, managed memory, kernels that touch more
/// than 12 pieces of memory, and memory that is used before it is allocated or after it was freed. docs/reference/stream-programs.md has
/// the whole list.
///
/// Exit code: 0 if all went as the program expects, 1 if not, 2 if a program or an argument is at fault. If several apply, the
/// largest.
#[derive(Parser)]
#[command(allow_negative_numbers = true, verbatim_doc_comment)]
pub struct Args {
    /// A YAML file that holds a stream program, or several under `cases:`
    #[arg(value_name = "FILE")]
    program: PathBuf,
    /// Run only the program of this name
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    #[arg(long, default_value = "sim:h200", help = device::help("The GPU: {sim}, sim:FILE.toml, cuda:0 for a real one, or \
          auto: cuda:0 if there is one, otherwise sim:h200"))]
    device: String,
    /// The library of the CUDA driver, if not the system's own
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// The legal order in which the operations run: in-order (as GPUs were seen to do), seeded:N (a random one), adversarial
    /// (everything as late as possible), adversarial:N (the work of op N is late) or adversarial:call:N (the call of op N is
    /// late)
    #[arg(long, default_value = "in-order")]
    schedule: Schedule,
    /// The number of connections of a simulated device, as CUDA_DEVICE_MAX_CONNECTIONS sets it on a GPU: if more streams than
    /// that work, they share connections in turn and may wait for each other without need; 8 by default
    #[arg(long, value_name = "N", conflicts_with = "explore", value_parser = clap::value_parser!(u32).range(1..=32))]
    connections: Option<u32>,
    /// Run the program under this many legal schedules, and show two schedules with different results
    #[arg(long, value_name = "N", conflicts_with_all = ["schedule", "trace", "log"],
          value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    explore: Option<u32>,
    /// Make the program's calls this many times, as a loop does; each repetition is a step of the trace, so that `sidestream
    /// diagnose` can say what a step would gain
    #[arg(long, value_name = "N", conflicts_with = "explore",
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    repeat: Option<u16>,
    #[command(flatten)]
    width: Width,
    /// Print one line of JSON for each program instead of text
    #[arg(long)]
    json: bool,
    /// Write the run as a Chrome trace, which ui.perfetto.dev shows; only for one program
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the calls as an op log, which `sidestream check` reads; only for one program
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// The result of running one program, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    AsExpected,
    NotAsExpected,
    CannotRun,
}

impl Outcome {
    fn of(is_expected: bool) -> Outcome {
        if is_expected {
            Outcome::AsExpected
        } else {
            Outcome::NotAsExpected
        }
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Result<Exit, Failure> {
    let device = device::named(&args.device, args.driver.as_deref())?;
    if let Named::Cuda(_) = device {
        real::refuse_choices(args)?;
    }
    if args.connections.is_some() && args.schedule != Schedule::InOrder {
        return Err(Failure::input(
            "--connections is for --schedule in-order: other schedules use only documented guarantees; leave one out",
        ));
    }
    let document = read(&args.program)?;
    let wanted = |name: Option<&str>| args.case.is_none() || args.case.as_deref() == name;
    let programs: Vec<_> = document
        .programs
        .iter()
        .filter(|program| wanted(name_of(program)))
        .collect();
    if programs.is_empty() {
        return Err(Failure::input(format!(
            "{} has no program called {}; it has {}",
            shown(&args.program),
            args.case.as_deref().unwrap_or_default(),
            names_in(&document)
        )));
    }
    if (args.trace.is_some() || args.log.is_some()) && programs.len() > 1 {
        return Err(Failure::input(format!(
            "{} has {} programs, and --trace and --log write one; name it with --case",
            shown(&args.program),
            programs.len()
        )));
    }
    output::refuse_overwriting(
        std::slice::from_ref(&args.program),
        "the program",
        [("--trace", &args.trace), ("--log", &args.log)],
    )?;
    let mut worst = Outcome::AsExpected;
    for program in programs {
        // One program that cannot be run does not keep the others from running.
        let outcome = match program {
            Ok(program) => match (&device, args.explore) {
                (Named::Cuda(ordinal), _) => real::one(args, *ordinal, program)?,
                (Named::Simulated(profile), Some(count)) => {
                    explore::main(args, profile, program, count as usize)?
                }
                (Named::Simulated(profile), None) => one(args, profile, program)?,
            },
            Err(bad) => {
                let (name, why) = (bad.name.as_deref(), bad.to_string());
                refuse(args, name, bad.at, "BadProgram", &why)?
            }
        };
        worst = worst.max(outcome);
    }
    Ok(worst as Exit)
}

/// Returns the names to choose from: the first few if there are many.
fn names_in(document: &Document) -> String {
    let names: Vec<&str> = document.programs.iter().filter_map(name_of).collect();
    few(&names, 8)
}

/// Returns the first `most` names, and how many more there are.
fn few<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn name_of(program: &Result<Program, Box<BadProgram>>) -> Option<&str> {
    match program {
        Ok(program) => Some(&program.name),
        Err(bad) => bad.name.as_deref(),
    }
}

/// Reports why a program is not run.
fn refuse(
    args: &Args,
    name: Option<&str>,
    at: Option<usize>,
    code: &str,
    why: &str,
) -> Result<Outcome, Failure> {
    if args.json {
        let line = json!({"schema": "sidestream.run/1", "name": name,
                          "error": {"at": at, "code": code, "why": why}});
        print(format_args!("{line}\n"))?;
    } else {
        tell(format_args!("sidestream: {}: {why}", shown(&args.program)));
    }
    Ok(Outcome::CannotRun)
}

/// Refuses a schedule that names an op which does not exist: it would silently be in-order.
fn has_late_op(schedule: Schedule, program: &Program) -> Result<(), String> {
    let (Schedule::Delaying(op) | Schedule::DelayingCall(op)) = schedule else {
        return Ok(());
    };
    let choice = match program.ops.len() {
        ops if ops > op.0 as usize => return Ok(()),
        0 => "the program has no op".to_owned(),
        ops => format!("give one of 0 to {}", ops - 1),
    };
    Err(format!(
        "there is no op {} for --schedule {schedule}; {choice}",
        op.0
    ))
}

fn one(args: &Args, profile: &Profile, program: &Program) -> Result<Outcome, Failure> {
    let repeated = args.repeat.map(|times| program.repeated(times.into()));
    let looped = repeated.as_ref().unwrap_or(program);
    let ran = has_late_op(args.schedule, looped).and_then(|()| {
        let connections = args.connections.unwrap_or(CONNECTIONS);
        let ran = run_connected(looped, profile, args.schedule, false, connections);
        ran.map_err(|error| error.to_string())
    });
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => {
            let name = &program.name;
            let why = format!("program {name}: {error}");
            return refuse(args, Some(name), None, "CannotRun", &why);
        }
    };
    let mut trace = ran.trace(looped);
    if repeated.is_some() {
        mark_steps(&mut trace, program.ops.len());
    }
    let judged = Judged::of(program, &ran);
    write_files(args, looped, &mut trace)?;
    let json = || as_json(args, program, &ran, &trace, &judged);
    let text = || as_text(args, profile, program, &ran, &trace, &judged);
    output::say(args.json, json, text)?;
    Ok(Outcome::of(judged.unmet.is_empty()))
}

/// Writes the files of `--log` and `--trace`.
fn write_files(args: &Args, program: &Program, trace: &mut Trace) -> Result<(), Failure> {
    if let Some(path) = &args.log {
        let log = record(program).map_err(|e| Failure::input(format!("cannot log: {e}")))?;
        std::fs::write(path, log).map_err(|e| Failure::file("write", path, &e))?;
    }
    if let Some(path) = &args.trace {
        // With its log, the trace can be checked by `sidestream check`. A program that cannot be logged gets a trace without
        // one.
        trace.log = record(program).ok();
        output::write_trace(trace, path)?;
    }
    Ok(())
}

/// The result of judging a program's expectations: about the allocator, about the call that fails and, at the runtime level,
/// about the findings of a checker.
struct Judged {
    unmet: Vec<String>,
    /// Whether the program has an expectation that this command can judge.
    asked: bool,
}

impl Judged {
    fn of(program: &Program, ran: &Run) -> Judged {
        let mut unmet: Vec<String> = ran
            .unmet
            .iter()
            .map(|unmet| format!("op {}: {}", unmet.op, unmet.why))
            .collect();
        let mut fields = program.ops.iter().map(|op| &op.fields);
        let of_blocks = fields.any(|of| of.must_alias.is_some() || of.must_not_alias.is_some());
        if let (Level::Runtime, Some(expect)) = (program.level, &program.expect) {
            unmet.extend(expected_of_check(expect, &check(program)));
            return Judged { unmet, asked: true };
        }
        let expected = program.expect.as_ref().map(|expect| &expect.verdict);
        let wanted = match expected {
            Some(Expected::Error { at, code }) => Some((*at, code.name())),
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
            unmet.push(format!(
                "expected: {}; seen: {}",
                show(wanted),
                show(failed)
            ));
        }
        let asked = wanted.is_some() || of_blocks;
        Judged { unmet, asked }
    }
}

fn as_json(args: &Args, program: &Program, ran: &Run, trace: &Trace, judged: &Judged) -> Value {
    let failed = ran.failed.map(|(at, misuse)| {
        json!({"at": at, "code": misuse.code.name(), "number": misuse.code.number(),
               "rule": misuse.rule.to_string(), "why": misuse.why})
    });
    json!({
        "schema": "sidestream.run/1",
        "name": program.name,
        "device": args.device,
        "schedule": args.schedule.to_string(),
        "repeat": args.repeat.unwrap_or(1),
        "time_ns": trace.end_ns(),
        "work": work_as_json(trace),
        "error": failed,
        "as_expected": judged.unmet.is_empty(),
        "unmet": judged.unmet,
    })
}

fn work_as_json(trace: &Trace) -> Vec<Value> {
    let stream_of = |id| {
        trace
            .streams
            .iter()
            .find(|s| s.id == id)
            .map(|s| s.name.as_str())
    };
    let work = trace.work.iter().map(|w| {
        json!({"op": w.op.0, "device": w.device.0, "stream": stream_of(w.stream),
               "engine": w.what.engine().map(|e| e.name()),
               "start_ns": w.start_ns, "end_ns": w.end_ns})
    });
    work.collect()
}

fn as_text(
    args: &Args,
    profile: &Profile,
    program: &Program,
    ran: &Run,
    trace: &Trace,
    judged: &Judged,
) -> String {
    let mut out = format!(
        "{} on a simulated {}, {}{}: {:.1} µs\n",
        program.name,
        profile.name,
        args.schedule,
        args.repeat
            .map_or(String::new(), |n| format!(", {n} times")),
        trace.end_ns() as f64 / 1e3
    );
    out += &drawn(args, trace);
    out += &shared_connections(args, trace);
    if let Some((at, misuse)) = ran.failed {
        out += &format!("  op {at} fails, the run ends before it: {misuse}\n");
    }
    for unmet in &judged.unmet {
        out += &format!("  not as expected: {unmet}\n");
    }
    if judged.unmet.is_empty() && judged.asked {
        out += "  all expectations hold\n";
    }
    // The timeline itself does not show whether the program has a race.
    if !judged.asked && races(program) {
        out += &says_where(args);
    }
    args.width.lines().wrapped(&out)
}

fn drawn(args: &Args, trace: &Trace) -> String {
    let mut work = trace.work.iter();
    if work.any(|w| !matches!(w.what, What::Wait { .. })) {
        args.width.lines().timeline(trace).to_string()
    } else {
        "  no device has anything to do\n".to_owned()
    }
}

/// Returns a note on the devices that have fewer connections than working streams.
fn shared_connections(args: &Args, trace: &Trace) -> String {
    let connections = args.connections.unwrap_or(CONNECTIONS) as usize;
    let mut out = String::new();
    for device in trace
        .devices
        .iter()
        .filter(|_| args.schedule == Schedule::InOrder)
    {
        let streams = trace
            .streams
            .iter()
            .filter(|stream| stream.device == device.id)
            .count();
        if streams > connections {
            out += &format!(
                "  GPU {} has {streams} streams and {connections} connections: streams that share one may wait for each other \
                 without need (a model; --connections {})\n",
                device.id.0,
                streams.min(32)
            );
        }
    }
    out
}

fn races(program: &Program) -> bool {
    !check(program).report.races.is_empty()
}

fn says_where(args: &Args) -> String {
    let file = shown(&args.program);
    format!("  it races: `sidestream check {file}` says where\n")
}
