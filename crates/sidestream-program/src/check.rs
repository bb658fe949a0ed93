//! Checking a program, and what a checker prints about it.

use serde_json::{Value, json};
use sidestream::check::{BufferDecl, Checker, Lint, Names, Place, Race, Report};
use sidestream::op::{OpId, SiteId};
use sidestream::order::Chain;

use crate::error::BadProgram;
use crate::expect::Failure;
use crate::lower::{Command, Lowered, POOL_STREAMS, lower};
use crate::program::Program;

/// A program, or the log of a run, that was checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What it is called.
    pub name: String,
    /// What was found.
    pub report: Report,
    /// What the report's ids are called.
    pub names: Names,
    /// The call sites by id; empty, or missing, where there is no name for one.
    pub sites: Vec<String>,
}

/// Checks a program. Commands of the simulator mean nothing here.
pub fn check(program: &Program) -> Checked {
    let lowered = lower(program);
    let mut checker = Checker::new();
    lowered.declare(checker.order_mut());
    for buffer in &lowered.buffers {
        let place = match buffer.over {
            Some((below, start)) => Place::Within {
                buffer: below,
                start,
            },
            None => Place::Fresh,
        };
        let (memory, bytes) = (buffer.memory, buffer.size_bytes);
        checker.add_buffer(BufferDecl {
            memory,
            bytes,
            place,
        });
    }
    for (at, command) in lowered.commands.iter().enumerate() {
        match command {
            // What fails is in the report, which ends there.
            Command::Op(op) if checker.push(op).is_err() => break,
            Command::PoolGet { asked } => {
                let asked = u32::try_from(*asked).unwrap_or(u32::MAX);
                checker.note_pool(OpId(at as u32), asked, POOL_STREAMS);
            }
            _ => {}
        }
    }
    let names = names(program, &lowered, &checker);
    Checked {
        name: program.name.clone(),
        report: checker.report(),
        names,
        sites: program.sites.clone(),
    }
}

fn names(program: &Program, lowered: &Lowered, checker: &Checker) -> Names {
    let mut names = Names::of_legacy_streams(checker.order());
    for (name, stream) in names.streams.iter_mut().zip(&lowered.streams) {
        name.clone_from(&stream.name);
    }
    names.threads.clone_from(&program.threads);
    let buffer =
        |buffer: &crate::lower::Buffer| program.buffers[buffer.name.0 as usize].name.clone();
    names.buffers = lowered.buffers.iter().map(buffer).collect();
    names.events = program
        .events
        .iter()
        .map(|event| event.name.clone())
        .collect();
    names
}

/// What is printed about a program: the object that `docs/stream-programs.md` describes, with two
/// more keys for each race: `count`, and `sites` where the program names them.
pub fn checked_json(checked: &Checked) -> Value {
    let Checked {
        name,
        report,
        names,
        sites,
    } = checked;
    let site = |id: SiteId| sites.get(id.0 as usize).filter(|site| !site.is_empty());
    // A legacy stream without a name is `legacy`, whatever its device; names have no `@`.
    let place = |chain: Chain| match names.chain(chain) {
        name if name.starts_with("legacy@") => "legacy".to_owned(),
        name => name,
    };
    let race = |race: &Race| {
        json!({
            "kind": race.kind.code(),
            "buffer": race.buffer.map(|buffer| names.buffer(buffer)),
            "first": race.first.0,
            "second": race.second.0,
            "severity": race.severity.name(),
            "streams": [place(race.chains.0), place(race.chains.1)],
            "fix": race.fix.text(names),
            "count": race.count,
            "sites": [site(race.first_site), site(race.second_site)],
        })
    };
    let lint = |lint: &Lint| json!({"code": lint.code.code(), "op": lint.op.0});
    let error = report.error.map(|refused| {
        json!({"at": refused.op.0, "code": refused.misuse.code.name(),
               "why": refused.misuse.to_string()})
    });
    json!({
        "name": name,
        "verdict": report.verdict().name(),
        "races": report.races.iter().map(race).collect::<Vec<_>>(),
        "lints": report.lints.iter().map(lint).collect::<Vec<_>>(),
        "error": error,
    })
}

/// The same for a program that breaks the format.
pub fn bad_json(bad: &BadProgram) -> Value {
    json!({"name": bad.name, "verdict": "error", "races": [], "lints": [],
           "error": {"at": bad.at, "code": Failure::BadProgram.name(), "why": bad.to_string()}})
}
