//! `sidestream check -- PROGRAM`: the races of any CUDA program, from its calls.

use std::collections::BTreeSet;
use std::ffi::OsString;

use sidestream::check::{
    Findings, MEMORY_BYTES, OnRace, Race, Report, Severity, counted, live, one_line,
};
use sidestream::log::{Record, Sink};
use sidestream::op::OpId;
use sidestream_program::{Checked, checked_json};

use super::bytes::Bytes;
use super::session::{Exact, Options, Session};
use super::translate::{Hears, Process};
use crate::failure::{Exit, Failure, print, tell};
use crate::output;
use crate::suppress::{Suppressed, Suppressions};

/// The checker of a process.
pub(super) struct Watch {
    findings: Findings,
    sink: Box<dyn Sink>,
    /// `None` if accesses of kernels are guesses.
    bytes: Option<Bytes>,
}

impl Default for Watch {
    fn default() -> Watch {
        let (findings, sink) = live(OnRace::Report, MEMORY_BYTES);
        Watch {
            findings,
            sink,
            bytes: None,
        }
    }
}

impl Hears for Watch {
    fn take(&mut self, record: &Record<'_>) {
        self.sink.take(record);
        if let (Some(bytes), Record::Op(op)) = (&mut self.bytes, record) {
            bytes.note(op, &self.findings);
        }
    }

    fn doubts(&mut self, op: OpId) -> bool {
        self.findings.doubt(op)
    }

    fn hears_exactly(&mut self) {
        self.bytes = Some(Bytes::default());
    }
}

/// Runs a program, prints what races in it, and returns the exit code: the program's own unless it is zero, else 1 if there
/// is an error, and 2 if the program was not heard.
pub fn main(
    program: &[OsString],
    options: &Options,
    known: &Suppressions,
    json: bool,
    stacks: bool,
) -> Result<Exit, Failure> {
    let mut finished = Session::start(program, options, |_, _| Ok(Watch::default()))?.listen()?;
    let is_heard = finished.tell();
    let (mut code, mut is_earlier) = (2 * Exit::from(!is_heard), false);
    for (of, process) in finished.heard() {
        let found = report(&of, process, known, json, stacks)?;
        is_earlier |= found == 1 && process.exact.unseen.earlier > 0;
        match found {
            0 => {}
            // A race counts for more than what was not checked.
            found => code = if code == 1 { 1 } else { found },
        }
    }
    if is_earlier {
        tell(format_args!(
            "sidestream: not all launches were watched; the program runs again with all watched, and that report counts"
        ));
        let mut options = options.clone();
        options.exact = Some(Exact::All);
        return main(program, &options, known, json, stacks);
    }
    if is_heard {
        known.tell_unused();
    }
    Ok(finished.code(code))
}

/// Takes suppressed findings out of the report of a process.
fn take_out<'a>(
    known: &'a Suppressions,
    process: &mut Process<Watch>,
    report: &mut Report,
) -> Suppressed<'a> {
    let sites = process.told.findings.sites();
    let folder = std::env::current_dir().unwrap_or_default();
    known.take_out(report, &folder, |_, site| {
        let Some(site) = site else { return Vec::new() };
        let mut calls = process.stack(site);
        // The stack has the whole path of the line, the name of the site only its end.
        let name = sites.get(site.0 as usize);
        let kernel = name.and_then(|name| name.split(" at ").next());
        calls.extend(kernel.map(str::to_owned));
        calls
    })
}

/// Prints the report of a process. Returns 1 if it has an error, 2 if not all calls were checked, else 0.
fn report(
    name: &str,
    process: &mut Process<Watch>,
    known: &Suppressions,
    json: bool,
    stacks: bool,
) -> Result<Exit, Failure> {
    let mut report = process.told.findings.report();
    let suppressed = take_out(known, process, &mut report);
    let findings = &process.told.findings;
    let mut races = report.races.iter();
    let is_error = races.any(|race| race.severity() == Severity::Error);
    let has_ended = findings.ended().is_some();
    if has_ended {
        known.is_partial.set(true);
    }
    let text = || {
        let mut text = format!("{name}: {}", text(process, &report));
        suppressed.add_to_text(&mut text, &report);
        text
    };
    let data = || {
        let mut data = checked_json(&Checked {
            name: name.to_owned(),
            report: report.clone(),
            names: findings.names(),
            undeclared: Vec::new(),
            sites: findings.sites(),
        });
        data["host"] = process.host_seen.json();
        if process.exact.is_on {
            data["exact"] = process.exact.unseen.json();
            for (at, race) in report.races.iter().enumerate() {
                data["races"][at]["bytes"] = bytes_of(process, race).into();
            }
        }
        suppressed.add_to(&mut data);
        data
    };
    output::say(json, data, text)?;
    if stacks && !json {
        print(stacks_of(process, &report))?;
    }
    Ok(if is_error {
        1
    } else {
        2 * Exit::from(has_ended || report.error.is_some())
    })
}

/// Returns all that was found in a process.
pub(super) fn all(process: &Process<Watch>) -> String {
    text(process, &process.told.findings.report())
}

/// Returns the report of a process, without its name.
fn text(process: &Process<Watch>, report: &Report) -> String {
    let calls = counted(process.calls, "CUDA call");
    let mut text = format!("{calls}, {}", process.told.findings.text_of(report));
    for race in &report.races {
        let ops = format!("op {} and op {}", race.first.0, race.second.0);
        text += &match bytes_of(process, race) {
            None => String::new(),
            Some([at, end]) if end - at == 1 => format!("\n  {ops} both touch byte {at}\n"),
            Some([at, end]) => format!("\n  {ops} both touch bytes {at} to {}\n", end - 1),
        };
    }
    text + &process.host_seen.text() + &process.exact.unseen.text()
}

/// Returns some bytes of a race of kernels, if they are known.
fn bytes_of(process: &Process<Watch>, race: &Race) -> Option<[u64; 2]> {
    process.told.bytes.as_ref()?.of(race)
}

/// Returns the native stacks of the calls that race.
fn stacks_of(process: &mut Process<Watch>, report: &Report) -> String {
    let sites = process.told.findings.sites();
    let racing = report
        .races
        .iter()
        .flat_map(|race| [race.sites.0, race.sites.1]);
    let mut out = String::new();
    for site in racing.collect::<BTreeSet<_>>() {
        let frames = process.stack(site);
        if !frames.is_empty() {
            let site = sites.get(site.0 as usize).map_or("", String::as_str);
            out += &format!("\n  {}\n", one_line(site));
        }
        for frame in frames {
            out += &format!("    {}\n", one_line(&frame));
        }
    }
    out
}
