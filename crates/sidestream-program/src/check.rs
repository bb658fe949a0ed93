//! Checks a program, and describes the result as JSON.

use serde_json::{Value, json};
use sidestream::check::{Checker, Fix, Lint, Names, Race, Report, SpanId};
use sidestream::op::{SiteId, StreamId};
use sidestream::order::Chain;

use crate::error::BadProgram;
use crate::expect::Failure;
use crate::lower::{Lowered, lower};
use crate::program::Program;
use crate::record::records;

/// A program, or the log of a run, that was checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Name of the program.
    pub name: String,
    /// Findings of the check.
    pub report: Report,
    /// Names for the report's ids.
    pub names: Names,
    /// The legacy streams that have no name in the program, each with the declaration of the name that the report uses.
    pub undeclared: Vec<(StreamId, String)>,
    /// Call sites by id; empty or missing where a site has no name.
    pub sites: Vec<String>,
}

/// Checks a program. Commands of the simulator are ignored.
pub fn check(program: &Program) -> Checked {
    let lowered = lower(program);
    let mut checker = Checker::new();
    for record in records(program, &lowered) {
        // A failure is in the report, which ends there.
        if checker.take(&record).is_err() {
            break;
        }
    }
    let (names, undeclared) = names(program, &lowered, &checker);
    Checked {
        name: program.name.clone(),
        report: checker.report(),
        names,
        undeclared,
        sites: program.sites.clone(),
    }
}

fn names(
    program: &Program,
    lowered: &Lowered,
    checker: &Checker,
) -> (Names, Vec<(StreamId, String)>) {
    let mut streams: Vec<String> = lowered.streams.iter().map(|s| s.name.clone()).collect();
    let mut undeclared = Vec::new();
    // Blocking calls use a legacy stream for which the program may have no name.
    for (id, _, device) in checker.order().streams().skip(lowered.streams.len()) {
        let (mut name, kind) = match device.0 {
            0 => ("legacy".to_owned(), "legacy".to_owned()),
            n => (format!("legacy{n}"), format!("legacy@{n}")),
        };
        while streams.contains(&name) {
            name.push('_');
        }
        undeclared.push((id, format!("{name}: {kind}")));
        streams.push(name);
    }
    let name_of =
        |buffer: &crate::lower::Buffer| program.buffers[buffer.name.0 as usize].name.clone();
    let names = Names {
        streams,
        threads: program.threads.clone(),
        buffers: lowered.buffers.iter().map(name_of).collect(),
        events: program.events.iter().map(|e| e.name.clone()).collect(),
        spans: Vec::new(),
    };
    (names, undeclared)
}

impl Checked {
    /// Returns the streams that a fix names and that the program would have to declare, as entries of `streams`.
    pub fn to_declare(&self, fix: &Fix) -> Vec<&str> {
        let named = match *fix {
            Fix::WaitStream { stream, source, .. } => vec![stream, source],
            Fix::SyncStream { stream, .. } | Fix::RecordStream { stream, .. } => vec![stream],
            Fix::SyncEvent { .. } | Fix::Flag { .. } => Vec::new(),
        };
        let undeclared = self.undeclared.iter();
        let these = undeclared.filter(|(id, _)| named.contains(id));
        these.map(|(_, declaration)| declaration.as_str()).collect()
    }

    /// Returns a fix in one line.
    fn fix_text(&self, fix: &Fix) -> String {
        let text = fix.text(&self.names);
        match self.to_declare(fix)[..] {
            [] => text,
            ref declare => format!("{text} (with streams: {{{}}})", declare.join(", ")),
        }
    }
}

/// Version of the printed object; later versions may add keys.
const SCHEMA: &str = "sidestream.check/1";

/// Returns the printed object for a program, as `docs/reference/stream-programs.md` describes it, with more keys: for each race
/// `count` and `sites` (where the program names them), `spans` if an operation of a log was called in a span, and
/// `why` beside an error.
pub fn checked_json(checked: &Checked) -> Value {
    let Checked {
        name,
        report,
        names,
        sites,
        ..
    } = checked;
    let site = |id: SiteId| sites.get(id.0 as usize).filter(|site| !site.is_empty());
    let place = |chain: Chain| match chain {
        Chain::Stream(id) if checked.undeclared.iter().any(|(other, _)| *other == id) => {
            "legacy".to_owned()
        }
        chain => names.chain(chain),
    };
    let race = |race: &Race| {
        let mut line = json!({
            "kind": race.kind.code(),
            "buffer": race.buffer.map(|buffer| names.buffer(buffer)),
            "first": race.first.0,
            "second": race.second.0,
            "severity": race.severity().name(),
            "streams": [place(race.chains.0), place(race.chains.1)],
            "fix": checked.fix_text(&race.fix),
            "count": race.count,
            "sites": [site(race.sites.0), site(race.sites.1)],
        });
        if let Some(doubt) = race.doubt {
            line["doubt"] = doubt.text().into();
        }
        // Only the log of a run has spans.
        if race.spans != (None, None) {
            let span = |span: Option<SpanId>| span.map(|span| names.span(span));
            line["spans"] = json!([span(race.spans.0), span(race.spans.1)]);
        }
        line
    };
    let lint = |lint: &Lint| json!({"code": lint.code.code(), "op": lint.op.0});
    let error = report
        .error
        .map(|refused| json!({"at": refused.op.0, "code": refused.misuse.code.name()}));
    let why = report.error.map(|refused| refused.misuse.to_string());
    let mut line = json!({
        "schema": SCHEMA,
        "name": name,
        "verdict": report.verdict().name(),
        "races": report.races.iter().map(race).collect::<Vec<_>>(),
        "lints": report.lints.iter().map(lint).collect::<Vec<_>>(),
        "error": error,
    });
    if let Some(why) = why {
        line["why"] = why.into();
    }
    line
}

/// Returns the printed object for text that is not a document, with the reason.
pub fn unreadable_json(why: &str) -> Value {
    json!({"schema": SCHEMA, "name": null, "verdict": "error", "races": [], "lints": [],
           "error": {"at": null, "code": Failure::BadProgram.name()}, "why": why})
}

/// Returns the printed object for a program that breaks the format.
pub fn bad_json(bad: &BadProgram) -> Value {
    json!({"schema": SCHEMA, "name": bad.name, "verdict": "error", "races": [], "lints": [],
           "error": {"at": bad.at, "code": Failure::BadProgram.name()}, "why": bad.to_string()})
}
