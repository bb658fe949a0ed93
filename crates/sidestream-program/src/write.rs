//! From programs back to text.

use std::fmt::Write as _;

use sidestream::check::Severity;
use sidestream::op::DeviceId;

use crate::expect::{Expect, Expected};
use crate::names::DEFAULT_BYTES;
use crate::program::{
    Access, Act, BufferRef, EventRef, FlagRef, Level, Op, Origin, Program, StreamRef,
};
use crate::words::{FAILURES, LEVELS, LINT_CODES, MEMORIES, RACE_KINDS, STREAM_KINDS};

/// Writes programs as text that [`parse`](crate::parse) reads back as the same
/// programs, but for the lines of their ops: one as a document of its own, any
/// other number under `cases`.
///
/// Every op is one line in flow style, and the rest is left to its default
/// where it has one.
pub fn write(programs: &[&Program]) -> String {
    let mut text = String::from("version: 1\n");
    if let [program] = programs {
        write_program(&mut text, program, ["", ""]);
        return text;
    }
    text.push_str("cases:");
    text.push_str(if programs.is_empty() { " []\n" } else { "\n" });
    for program in programs {
        write_program(&mut text, program, ["- ", "  "]);
    }
    text
}

/// One op as the format has it, without its braces: `do: record, ev: e, s: s1`.
pub fn written(program: &Program, op: &Op) -> String {
    let mut fields = Fields::of(program, &op.act);
    if op.thread.0 != 0 {
        fields.put("t", &program.threads[op.thread.0 as usize]);
    }
    if let Some(site) = op.site {
        fields.put("site", &program.sites[site.0 as usize]);
    }
    fields.text
}

/// Writes one program; its first line starts with one lead, all others with the other.
fn write_program(text: &mut String, program: &Program, [first, lead]: [&str; 2]) {
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
    let streams = declared_streams(program);
    if !streams.is_empty() {
        line("streams", format!("{{{}}}", streams.join(", ")));
    }
    let buffers = declared_buffers(program);
    if !buffers.is_empty() {
        line("buffers", format!("{{{}}}", buffers.join(", ")));
    }
    let events = declared_events(program);
    if !events.is_empty() {
        line("events", format!("{{{}}}", events.join(", ")));
    }
    if program.ops.is_empty() {
        line("ops", "[]".to_owned());
    } else {
        let _ = writeln!(text, "{lead}ops:");
    }
    for op in &program.ops {
        let _ = writeln!(text, "{lead}- {{{}}}", written(program, op));
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
        match stream.device {
            DeviceId(0) => format!("{}: {kind}", stream.name),
            DeviceId(device) => format!("{}: {kind}@{device}", stream.name),
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

/// Free text in double quotes, where YAML can express every character.
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

/// The fields of one op as they are being written.
struct Fields<'p> {
    program: &'p Program,
    text: String,
}

impl<'p> Fields<'p> {
    fn put(&mut self, key: &str, value: &str) -> &mut Self {
        let _ = write!(self.text, ", {key}: {value}");
        self
    }

    fn stream(&mut self, key: &str, stream: StreamRef) -> &mut Self {
        let program = self.program;
        self.put(key, &program.streams[stream.0 as usize].name)
    }

    fn event(&mut self, key: &str, event: EventRef) -> &mut Self {
        let program = self.program;
        self.put(key, &program.events[event.0 as usize].name)
    }

    fn flag(&mut self, key: &str, flag: FlagRef) -> &mut Self {
        let program = self.program;
        self.put(key, &program.flags[flag.0 as usize])
    }

    fn buffer(&mut self, key: &str, buffer: BufferRef) -> &mut Self {
        let program = self.program;
        self.put(key, &program.buffers[buffer.0 as usize].name)
    }

    fn access(&mut self, key: &str, access: Access) -> &mut Self {
        let value = self.written(access);
        self.put(key, &value)
    }

    fn written(&self, access: Access) -> String {
        let name = &self.program.buffers[access.buffer.0 as usize].name;
        match access.range {
            // In flow style a bracket ends a scalar without quotes.
            Some((low, high)) => format!("\"{name}[{low}:{high}]\""),
            None => name.clone(),
        }
    }

    fn both(&mut self, reads: &[Access], writes: &[Access]) -> &mut Self {
        for (key, accesses) in [("r", reads), ("w", writes)] {
            if !accesses.is_empty() {
                let value = joined(accesses, |&access| self.written(access));
                self.put(key, &format!("[{value}]"));
            }
        }
        self
    }

    fn when(&mut self, key: &str, on: bool) -> &mut Self {
        if on { self.put(key, "true") } else { self }
    }

    /// The verb and all fields but `t` and `site`.
    fn of(program: &'p Program, act: &Act) -> Self {
        let mut fields = Fields {
            program,
            text: format!("do: {}", act.verb()),
        };
        fields.put_act(act);
        fields
    }

    fn put_act(&mut self, act: &Act) {
        match act {
            Act::Kernel {
                stream,
                reads,
                writes,
                repeat,
            } => {
                self.stream("s", *stream).both(reads, writes);
                if *repeat != 1 {
                    self.put("repeat", &repeat.to_string());
                }
            }
            Act::CopyAsync { stream, from, to } => {
                self.stream("s", *stream)
                    .access("from", *from)
                    .access("to", *to);
            }
            Act::MemsetAsync { stream, to } => {
                self.stream("s", *stream).access("to", *to);
            }
            Act::Copy { from, to } => {
                self.access("from", *from).access("to", *to);
            }
            Act::Memset { to } => {
                self.access("to", *to);
            }
            Act::HostFunc {
                stream,
                reads,
                writes,
                sets,
            } => {
                self.stream("s", *stream).both(reads, writes);
                if let Some(flag) = sets {
                    self.flag("sets", *flag);
                }
            }
            Act::GraphLaunch {
                stream,
                graph,
                reads,
                writes,
            } => {
                let program = self.program;
                self.stream("s", *stream)
                    .put("g", &program.graphs[graph.0 as usize])
                    .both(reads, writes);
            }
            Act::Record { event, stream } => {
                self.event("ev", *event).stream("s", *stream);
            }
            Act::Wait { stream, event } => {
                self.stream("s", *stream).event("ev", *event);
            }
            Act::WaitStream { stream, source } => {
                self.stream("s", *stream).stream("src", *source);
            }
            Act::SyncStream { stream }
            | Act::CreateStream { stream }
            | Act::DestroyStream { stream }
            | Act::SimHold { stream }
            | Act::SimRelease { stream } => {
                self.stream("st", *stream);
            }
            Act::BeginCapture { stream } | Act::EndCapture { stream } => {
                self.stream("s", *stream);
            }
            Act::SyncEvent { event } | Act::CreateEvent { event } | Act::DestroyEvent { event } => {
                self.event("ev", *event);
            }
            Act::SyncDevice { device: None } => {}
            Act::SyncDevice {
                device: Some(DeviceId(device)),
            }
            | Act::SetDevice {
                device: DeviceId(device),
            } => {
                self.put("dev", &device.to_string());
            }
            Act::QueryStream { stream, ready } => {
                self.stream("st", *stream).when("ready", *ready);
            }
            Act::QueryEvent { event, ready } => {
                self.event("ev", *event).when("ready", *ready);
            }
            Act::SetFlag { flag } | Act::WaitFlag { flag } => {
                self.flag("flag", *flag);
            }
            Act::HostRead { access } | Act::HostWrite { access } => {
                self.access("buf", *access);
            }
            Act::Alloc {
                buffer,
                stream,
                over,
                after_events,
                must_alias,
                must_not_alias,
            } => {
                self.buffer("buf", *buffer);
                if let Some(stream) = stream {
                    self.stream("s", *stream);
                }
                if let Some(over) = over {
                    self.access("over", *over);
                }
                self.when("after_events", *after_events);
                if let Some(other) = must_alias {
                    self.buffer("must_alias", *other);
                }
                if let Some(other) = must_not_alias {
                    self.buffer("must_not_alias", *other);
                }
            }
            Act::Free { buffer }
            | Act::CudaMalloc { buffer }
            | Act::CudaFree { buffer }
            | Act::FreePinned { buffer } => {
                self.buffer("buf", *buffer);
            }
            Act::RecordStream { buffer, stream } => {
                self.buffer("buf", *buffer).stream("st", *stream);
            }
            Act::MallocAsync { buffer, stream } | Act::FreeAsync { buffer, stream } => {
                self.buffer("buf", *buffer).stream("s", *stream);
            }
            Act::Elapsed { start, end } => {
                self.event("a", *start).event("b", *end);
            }
            Act::SetCapacity { blocks } => {
                self.put("blocks", &blocks.to_string());
            }
            Act::PoolGet { count, first, last } => {
                self.put("count", &count.to_string())
                    .stream("first", *first)
                    .stream("last", *last);
            }
        }
    }
}
