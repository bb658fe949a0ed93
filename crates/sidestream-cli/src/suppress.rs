//! Suppressions: findings that a user has judged harmless, each with a reason.

use std::cell::Cell;
use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use sidestream::check::{Report, counted, one_line};
use sidestream::op::{OpId, SiteId};

use crate::failure::{Failure, shown, tell};
use crate::input;

/// What is said of suppressions that matched nothing.
const UNUSED: &str = "these suppressions matched nothing; correct or remove them: names and path components match whole";

/// Where findings are not reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a line of a file, of whose path these are the last components.
    Line(String, u64),
    /// In a function of this name, or in what it calls.
    Function(String),
    /// At launches of a kernel of this name.
    Kernel(String),
}

/// Findings that are not reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suppression {
    /// The file and the line in which it stands.
    pub source: String,
    /// Where, as it is written.
    at: String,
    /// Where.
    pub place: Place,
    /// Why they are harmless.
    pub reason: String,
}

impl fmt::Display for Suppression {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} ({})", one_line(&self.at), one_line(&self.reason))
    }
}

impl Place {
    /// Returns whether a call is at this place. It is described as in reports: `KERNEL at FILE:LINE in FUNCTION`, of which parts may be
    /// missing; without a line, the function is followed by ` in LIBRARY`. Paths are relative to `folder`.
    fn is_of(&self, call: &str, folder: &Path) -> bool {
        let (kernel, at) = call.split_once(" at ").unwrap_or((call, call));
        let (first, last) = at.rsplit_once(" in ").unwrap_or((at, ""));
        let line = first.rsplit_once(':');
        let line = line.and_then(|(file, line)| Some((file, line.parse::<u64>().ok()?)));
        let is_named = |own: &str, name: &str| {
            let outer = own.strip_suffix(name);
            outer.is_some_and(|outer| outer.is_empty() || outer.ends_with("::"))
        };
        match self {
            Place::Line(file, own) => {
                line.is_some_and(|(path, line)| line == *own && folder.join(path).ends_with(file))
            }
            Place::Function(name) => {
                let own = if line.is_some() { last } else { first };
                is_named(own.rsplit_once("()").map_or(own, |(own, _)| own), name)
            }
            Place::Kernel(name) => is_named(kernel, name),
        }
    }
}

/// Reads suppressions, one a line; empty lines and those that begin with `#` are ignored. `path` names the file.
///
/// # Errors
/// The first line that is not a suppression, and what to write.
pub fn parse(text: &str, path: &str) -> Result<Vec<Suppression>, String> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !(line.is_empty() || line.starts_with('#')));
    let read = |(number, line): (usize, &str)| {
        let source = format!("{path}:{number}");
        let wrong = |why: &str| format!("{source}: {why}");
        let (place, reason) = place_of(line).ok_or_else(|| {
            let write = "write FILE:LINE REASON, function:NAME REASON or kernel:NAME REASON";
            wrong(&format!(
                "'{}' is not a suppression; {write}",
                one_line(line)
            ))
        })?;
        let at = line[..line.len() - reason.len()].trim_end();
        if reason.is_empty() {
            return Err(wrong(&format!(
                "say after {} why it is not a race",
                one_line(at)
            )));
        }
        if matches!(place, Place::Line(_, 0)) {
            let at = one_line(at);
            return Err(wrong(&format!("{at}: lines are counted from 1")));
        }
        Ok(Suppression {
            source,
            at: at.to_owned(),
            place,
            reason: reason.to_owned(),
        })
    };
    lines.map(read).collect()
}

/// Splits a line into the place and what follows it.
fn place_of(line: &str) -> Option<(Place, &str)> {
    let kinds = [
        ("function:", Place::Function as fn(_) -> _),
        ("kernel:", Place::Kernel as fn(_) -> _),
    ];
    for (kind, place) in kinds {
        let Some(rest) = line.strip_prefix(kind) else {
            continue;
        };
        // As in `(anonymous namespace)::scale`, there may be spaces in parentheses.
        let mut depth = 0;
        let end = rest.find(|c: char| {
            depth += i32::from(matches!(c, '(' | '{')) - i32::from(matches!(c, ')' | '}'));
            depth == 0 && c.is_whitespace()
        });
        let (name, reason) = rest.split_at(end.unwrap_or(rest.len()));
        let name = name.strip_suffix("()").unwrap_or(name);
        return (!name.is_empty()).then(|| (place(name.to_owned()), reason.trim_start()));
    }
    let line = line.strip_prefix("./").unwrap_or(line);
    line.match_indices(':').find_map(|(at, _)| {
        let (file, rest) = (&line[..at], &line[at + 1..]);
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (number, reason) = rest.split_at(end.unwrap_or(rest.len()));
        let is_end = reason.is_empty() || reason.starts_with(char::is_whitespace);
        let number = number.parse().ok()?;
        let place = Place::Line(file.to_owned(), number);
        (is_end && !file.is_empty()).then(|| (place, reason.trim_start()))
    })
}

/// The suppressions of a run of the command.
#[derive(Default, Debug)]
pub struct Suppressions {
    /// Each with whether it matched a finding.
    list: Vec<(Suppression, Cell<bool>)>,
    /// Whether something was not checked, so that it is not known which suppressions match nothing.
    pub is_partial: Cell<bool>,
}

impl Suppressions {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Suppressions, Failure> {
        let bytes = input::read(path, input::open(path)?)?;
        let no_text = |_| Failure::input(format!("{} is not UTF-8 text", shown(path)));
        let text = std::str::from_utf8(&bytes).map_err(no_text)?;
        let list = parse(text, &shown(path)).map_err(Failure::input)?;
        Ok(Suppressions {
            list: list.into_iter().map(|one| (one, Cell::default())).collect(),
            is_partial: Cell::default(),
        })
    }

    /// Takes the findings out of a report that are suppressed. `calls` describes a call, and those that led to it, with paths
    /// relative to `folder`.
    pub fn take_out(
        &self,
        report: &mut Report,
        folder: &Path,
        mut calls: impl FnMut(OpId, Option<SiteId>) -> Vec<String>,
    ) -> Suppressed<'_> {
        if report.error.is_some() {
            self.is_partial.set(true);
        }
        let own = self.list.iter().map(|(one, _)| (one, 0));
        let mut suppressed = Suppressed {
            each: own.collect(),
            findings: 0,
        };
        if self.list.is_empty() {
            return suppressed;
        }
        let mut stays = |calls: Vec<String>| {
            let mut stays = true;
            for ((one, findings), (_, is_used)) in suppressed.each.iter_mut().zip(&self.list) {
                if calls.iter().any(|call| one.place.is_of(call, folder)) {
                    *findings += 1;
                    is_used.set(true);
                    stays = false;
                }
            }
            suppressed.findings += u64::from(!stays);
            stays
        };
        report.races.retain(|race| {
            let mut both = calls(race.first, Some(race.sites.0));
            both.extend(calls(race.second, Some(race.sites.1)));
            stays(both)
        });
        report.lints.retain(|lint| stays(calls(lint.op, lint.site)));
        suppressed
    }

    /// Tells on standard error which suppressions matched nothing.
    pub fn tell_unused(&self) {
        let unused = self.list.iter().filter(|(_, is_used)| !is_used.get());
        let unused = unused.map(|(one, _)| format!("{}: {one}", one.source));
        let unused: Vec<_> = unused.collect();
        if !(unused.is_empty() || self.is_partial.get()) {
            tell(format_args!("sidestream: {UNUSED}: {}", unused.join(", ")));
        }
    }
}

/// What suppressions took out of a report.
pub struct Suppressed<'a> {
    /// Each with its number of findings.
    each: Vec<(&'a Suppression, u64)>,
    /// The number of all these findings.
    findings: u64,
}

impl Suppressed<'_> {
    /// Adds to the text of a report, whose first line ends with the summary, a line for each suppression that was used.
    pub fn add_to_text(&self, text: &mut String, report: &Report) {
        let summary = report.summary();
        let at = text.find(&format!("{summary}\n"));
        // Without this, a report would say that there is no race where there is one that is known.
        if let (1.., true, Some(at)) = (self.findings, summary.starts_with("no race"), at) {
            let findings = counted(self.findings, "suppressed finding");
            text.insert_str(at + "no race".len(), &format!(" besides {findings}"));
        }
        for (one, findings) in &self.each {
            if *findings > 0 {
                let findings = counted(*findings, "finding");
                *text += &format!("\n  suppressed: {findings}: {one}\n");
            }
        }
    }

    /// Adds all to a report.
    pub fn add_to(&self, report: &mut Value) {
        let one = |(one, findings): &(&Suppression, u64)| json!({"place": one.at, "reason": one.reason, "findings": findings});
        if !self.each.is_empty() {
            report["suppressed"] = self.each.iter().map(one).collect();
        }
    }
}
