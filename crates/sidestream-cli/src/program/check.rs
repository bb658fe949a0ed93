//! `sidestream check -- PROGRAM`: the races of any CUDA program, from its calls.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;

use sidestream::check::{Findings, MEMORY_BYTES, OnRace, Severity, counted, live};
use sidestream::log::{Record, Sink};

use super::session::{Finished, Session};
use super::translate::{Hears, Process};
use crate::failure::{Exit, Failure, print, tell};

/// The checker of a process.
struct Watch {
    findings: Findings,
    sink: Box<dyn Sink>,
}

impl Hears for Watch {
    fn take(&mut self, record: &Record<'_>) {
        self.sink.take(record);
    }
}

/// Runs a program, prints what races in it, and returns the exit code: the program's own unless it is zero, else 1 if there
/// is an error.
pub fn main(program: &[OsString]) -> Result<Exit, Failure> {
    let watch = |_| {
        let (findings, sink) = live(OnRace::Report, MEMORY_BYTES);
        Watch { findings, sink }
    };
    let Finished {
        status,
        processes,
        problems,
    } = Session::start(program, watch)?.listen()?;
    for problem in &problems {
        tell(format_args!("sidestream: {problem}"));
    }
    let name = program[0].to_string_lossy();
    if processes.is_empty() {
        tell(format_args!(
            "sidestream: {name} made no CUDA call: nothing was checked"
        ));
    }
    let mut races = false;
    let several = processes.len() > 1;
    for (pid, process, watch) in &processes {
        let of = if several {
            format!("{name}, process {pid}")
        } else {
            name.clone().into_owned()
        };
        races |= report(&of, process, &watch.findings)?;
    }
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if let Some(signal) = status.signal() {
        tell(format_args!(
            "sidestream: {name} was ended by signal {signal}; the report covers its calls up to there"
        ));
    }
    Ok(match code {
        0 => Exit::from(races),
        code => code as Exit,
    })
}

/// Prints the report of a process, and returns whether it has an error.
fn report(name: &str, process: &Process, findings: &Findings) -> Result<bool, Failure> {
    if let Some(problem) = &process.problem {
        tell(format_args!("sidestream: {name}: {problem}"));
    }
    let report = findings.report();
    let text = findings.text();
    let calls = counted(process.calls, "CUDA call");
    print(format_args!("{name}: {calls}, {text}"))?;
    Ok(report
        .races
        .iter()
        .any(|race| race.severity == Severity::Error))
}
