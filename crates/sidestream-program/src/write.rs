//! Writes programs as text.

use std::fmt::Write as _;

use sidestream::check::{Severity, one_line};
use sidestream::op::DeviceId;

use crate::expect::{Expect, Expected};
use crate::names::DEFAULT_BYTES;
use crate::program::{Access, Fields, Level, Op, Origin, Program};
use crate::verbs::Slot;
use crate::words::{
    COMPARES, FAILURES, LEVELS, LINT_CODES, MEMORIES, RACE_KINDS, SOURCE_ORDERS, STREAM_KINDS,
};

/// Writes programs as text that [`parse`](crate::parse) reads back as equal programs, except for the lines of their
/// ops: a single program as a document of its own, and any other number under `cases`.
///
/// Every op is one line in flow style; other keys are omitted where they have their default.
pub fn write(programs: &[&Program]) -> String {
    if let [program] = programs {
        return write_commented(program, &[]);
    }
    let mut text = String::from("version: 1\n");
    text.push_str("cases:");
    text.push_str(if programs.is_empty() { " []\n" } else { "\n" });
    for program in programs {
        write_program(&mut text, program, ["- ", "  "], &[]);
    }
    text
}

/// Writes one program as a document of its own, with a comment after each op that has one.
pub(crate) fn write_commented(program: &Program, comments: &[String]) -> String {
    let mut text = String::from("version: 1\n");
    write_program(&mut text, program, ["", ""], comments);
    text
}

/// Writes one op in the format, without its braces: `do: record, ev: e, s: s1`.
pub fn written(program: &Program, op: &Op) -> String {
    let mut text = format!("do: {}", op.verb.name());
    let mut put = |key: &str, value: &str| {
        let _ = write!(text, ", {key}: {value}");
    };
    let mut fields = op.fields.clone();
    for field in op.verb.fields() {
        if let Some(value) = value(program, &mut fields, field.slot) {
            put(field.key, &value);
        }
    }
    if op.thread.0 != 0 {
        put("t", &program.threads[op.thread.0 as usize]);
    }
    if let Some(site) = op.site {
        put("site", &program.sites[site.0 as usize]);
    }
    text
}

/// Returns the text of a field, if the op has it.
fn value(program: &Program, fields: &mut Fields, slot: Slot) -> Option<String> {
    let access = |it: &Access| range_of(program, it);
    Some(match slot {
        Slot::Stream(at) | Slot::PoolStream(at) => {
            program.streams[(*at(fields))?.0 as usize].name.clone()
        }
        Slot::Event(at) => program.events[(*at(fields))?.0 as usize].name.clone(),
        Slot::Raised | Slot::Awaited => program.flags[fields.flag?.0 as usize].clone(),
        Slot::Graph => program.graphs[fields.graph?.0 as usize].clone(),
        Slot::Buffer(at) => program.buffers[(*at(fields))?.0 as usize].name.clone(),
        Slot::Access(at, _) => access(at(fields).first()?),
        Slot::Accesses(at, _) if at(fields).is_empty() => return None,
        Slot::Accesses(at, _) => format!("[{}]", joined(at(fields), access)),
        Slot::SourceOrder => SOURCE_ORDERS.of(fields.source_order?).to_owned(),
        Slot::Compare => COMPARES.of(fields.compare?).to_owned(),
        Slot::Over => access(fields.over.as_ref()?),
        Slot::Device => fields.device?.0.to_string(),
        Slot::Number { .. } => fields.number?.to_string(),
        Slot::Yes => fields.yes.then(|| "true".to_owned())?,
    })
}

fn range_of(program: &Program, access: &Access) -> String {
    let name = &program.buffers[access.buffer.0 as usize].name;
    match access.range {
        // In flow style a bracket would end an unquoted scalar.
        Some((low, high)) => format!("\"{name}[{low}:{high}]\""),
        None => name.clone(),
    }
}

/// Writes one program; its first line starts with `first`, all others with `lead`.
fn write_program(
    text: &mut String,
    program: &Program,
    [first, lead]: [&str; 2],
    comments: &[String],
) {
    let mut line = |key: &str, value: String| {
        let lead = if key == "name" { first } else { lead };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{lead}{key}: {value}");
    };
    line("name", program.name.clone());
    if program.level != Level::default() {
        line("level", LEVELS.of(program.level).to_owned());
    }
    if let Some(from) = &program.from {
        line("from", quoted(from));
    }
    if let Some(note) = &program.note {
        line("note", quoted(note));
    }
    if !program.rules.is_empty() {
        line(
            "rules",
            format!("[{}]", joined(&program.rules, u32::to_string)),
        );
    }
    let declared = [
        ("streams", declared_streams(program)),
        ("buffers", declared_buffers(program)),
        ("events", declared_events(program)),
    ];
    for (key, entries) in declared {
        if !entries.is_empty() {
            line(key, format!("{{{}}}", entries.join(", ")));
        }
    }
    if program.ops.is_empty() {
        line("ops", "[]".to_owned());
    } else {
        let _ = writeln!(text, "{lead}ops:");
    }
    for (at, op) in program.ops.iter().enumerate() {
        let _ = write!(text, "{lead}- {{{}}}", written(program, op));
        if let Some(comment) = comments.get(at) {
            let _ = write!(text, "  # {}", one_line(comment));
        }
        text.push('\n');
    }
    if let Some(expect) = &program.expect {
        let _ = writeln!(text, "{lead}expect: {{{}}}", expected(expect));
    }
}

fn joined<T>(items: &[T], write: impl FnMut(&T) -> String) -> String {
    items.iter().map(write).collect::<Vec<_>>().join(", ")
}

fn declared_streams(program: &Program) -> Vec<String> {
    let declared = program
        .streams
        .iter()
        .filter(|stream| stream.origin == Origin::Declared);
    let written = declared.map(|stream| {
        let kind = STREAM_KINDS.of(stream.kind);
        let kind = match stream.device {
            DeviceId(0) => kind.to_owned(),
            DeviceId(device) => format!("{kind}@{device}"),
        };
        match stream.priority {
            0 => format!("{}: {kind}", stream.name),
            priority => format!("{}: {{kind: {kind}, priority: {priority}}}", stream.name),
        }
    });
    written.collect()
}

fn declared_buffers(program: &Program) -> Vec<String> {
    let declared = program.buffers.iter().filter(|buffer| !buffer.implicit);
    let written = declared.map(|buffer| {
        let (name, kind) = (&buffer.name, MEMORIES.of(buffer.memory));
        match buffer.size_bytes {
            DEFAULT_BYTES => format!("{name}: {kind}"),
            bytes => format!("{name}: {{kind: {kind}, bytes: {bytes}}}"),
        }
    });
    written.collect()
}

fn declared_events(program: &Program) -> Vec<String> {
    let declared = program.events.iter().filter(|event| !event.implicit);
    let written = declared.map(|event| match event.device {
        Some(DeviceId(device)) => format!("{}: dev{device}", event.name),
        None => format!("{}: no_timing", event.name),
    });
    written.collect()
}

fn expected(expect: &Expect) -> String {
    let mut text = match &expect.verdict {
        Expected::Clean => "v: clean".to_owned(),
        Expected::Race {
            must,
            severity,
            distinct,
        } => {
            let pairs = joined(must, |pair| {
                let buffer = pair.buffer.as_deref().unwrap_or("null");
                format!(
                    "[{}, {buffer}, {}, {}]",
                    RACE_KINDS.of(pair.kind),
                    pair.first,
                    pair.second
                )
            });
            let severity = match severity {
                Severity::Warn => ", severity: warn",
                Severity::Error => "",
            };
            let distinct = distinct.map_or(String::new(), |n| format!(", distinct: {n}"));
            format!("v: race{severity}, must: [{pairs}]{distinct}")
        }
        Expected::Error { at, code } => {
            let at = at.map_or("null".to_owned(), |at| at.to_string());
            format!("v: error, at: {at}, code: {}", FAILURES.of(*code))
        }
    };
    if !expect.lints.is_empty() {
        let codes = joined(&expect.lints, |&lint| LINT_CODES.of(lint).to_owned());
        let _ = write!(text, ", lint: [{codes}]");
    }
    text
}

/// Writes free text in double quotes, in which YAML can express every character.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            ' '..='~' => quoted.push(character),
            _ if character.is_alphanumeric() => quoted.push(character),
            _ => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(character));
            }
        }
    }
    quoted.push('"');
    quoted
}
