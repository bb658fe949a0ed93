//! Reads one program: its keys, its declarations, its list of ops.

use sidestream::op::{DeviceId, StreamKind};

use crate::error::{BadProgram, Fault, shown};
use crate::limits::Limits;
use crate::names::{DEFAULT_BYTES, Names};
use crate::program::{Origin, Program, StreamDecl, StreamRef};
use crate::words::{LEVELS, MEMORIES, STREAM_KINDS};
use crate::yaml::{Items, Kind, View};

use super::record::Record;
use super::{expect, op, scalars};

const KEYS: [&str; 11] = [
    "version", "name", "level", "streams", "buffers", "events", "ops", "expect", "from", "note",
    "rules",
];

/// Reads a program; `above` is an error of its document, if there is one.
pub(super) fn read(
    view: View<'_>,
    above: Option<Fault>,
    limits: &Limits,
) -> Result<Program, Box<BadProgram>> {
    let mut names = Names::default();
    let result = match above {
        Some(fault) => Err(fault),
        None => read_keys(view, &mut names, limits),
    };
    result.map_err(|fault| {
        // Best effort: an invalid mapping gives neither a name nor an expected result.
        let record = Record::read(view, "a program").ok();
        let key = |key| record.as_ref().and_then(|record| record.get(key));
        Box::new(BadProgram {
            name: key("name")
                .and_then(|name| scalars::text(name, "a name").ok())
                // A valid name is never shortened: users match answers by it.
                .map(|name| {
                    if crate::names::is_name(name) {
                        name.to_owned()
                    } else {
                        shown(name)
                    }
                }),
            at: fault.at,
            line: fault.line,
            verb: fault.verb,
            field: fault.field,
            message: fault.message,
            expect: key("expect").and_then(|view| {
                let ops = key("ops").and_then(|ops| scalars::list(ops, "ops").ok());
                expect::read(view, &names, ops.map_or(0, Items::len)).ok()
            }),
        })
    })
}

fn read_keys<'t>(view: View<'t>, names: &mut Names<'t>, limits: &Limits) -> Result<Program, Fault> {
    let record = Record::read(view, "a program, a mapping with `name` and `ops`,")?;
    record.only(
        |key| KEYS.contains(&key),
        || format!("a program has the keys {}", KEYS.join(", ")),
    )?;
    check_version(&record)?;
    let need = |key| {
        let missing = format!("`{key}` is missing; every program has a `name` and `ops`");
        let value = record.need(key, missing);
        value.map_err(|fault| fault.in_field(key))
    };

    let name = scalars::name(need("name")?).map_err(|fault| fault.in_field("name"))?;
    let mut program = Program {
        name: name.to_owned(),
        ..Program::default()
    };
    names.thread(&mut program, "t0");
    let level = record.read_key("level", |view| scalars::word(view, &LEVELS, "a level"))?;
    program.level = level.unwrap_or_default();
    let mut reader = op::Reader::new(names, &mut program, limits);
    record.read_key("streams", |view| reader.streams(view))?;
    record.read_key("buffers", |view| reader.buffers(view))?;
    record.read_key("events", |view| reader.events(view))?;
    let text = |view| Ok(scalars::text(view, "text")?.to_owned());
    reader.program.from = record.read_key("from", text)?;
    reader.program.note = record.read_key("note", text)?;
    reader.program.rules = record.read_key("rules", rules)?.unwrap_or_default();

    let ops = scalars::list(need("ops")?, "ops").map_err(|fault| fault.in_field("ops"))?;
    if ops.len() > limits.ops {
        let message = format!("{} ops are more than the {} allowed", ops.len(), limits.ops);
        return Err(record.fault(message).in_field("ops"));
    }
    let ops = ops.iter().enumerate().map(|(at, view)| {
        reader.read(view).map_err(|fault| Fault {
            at: Some(at),
            verb: op::verb_of(view).map(shown),
            ..fault
        })
    });
    program.ops = ops.collect::<Result<_, _>>()?;

    let ops = program.ops.len();
    program.expect = record.read_key("expect", |view| expect::read(view, names, ops))?;
    Ok(program)
}

pub(super) fn check_version(record: &Record<'_>) -> Result<(), Fault> {
    let version = record.read_key("version", |view| {
        scalars::integer(view, 1, 1).map_err(|_| {
            view.fault(format!(
                "{view} is not a version of the format; this reader knows 1"
            ))
        })
    });
    version.map(|_| ())
}

fn rules(view: View<'_>) -> Result<Vec<u32>, Fault> {
    let number = |view: View<'_>| {
        let text = scalars::text(view, "the number of a rule")?;
        let digits = text.strip_prefix('R').unwrap_or(text);
        let number = digits.parse().ok().filter(|_| !digits.starts_with('+'));
        number.ok_or_else(|| scalars::unknown(view, "the number of a rule", "30 or R30"))
    };
    scalars::list(view, "rule numbers")?
        .iter()
        .map(number)
        .collect()
}

/// Returns the entries of a declaration, whose keys must all be names.
fn declared<'t>(view: View<'t>) -> Result<Vec<(&'t str, View<'t>)>, Fault> {
    let record = Record::read(view, "a mapping from names to kinds")?;
    for &(key, value) in &record.entries {
        if !crate::names::is_name(key) {
            return Err(value.fault(format!(
                "`{}` is not a name; use a letter, then letters, digits and `_`, 255 at most",
                shown(key)
            )));
        }
    }
    Ok(record.entries)
}

/// The declarations.
impl<'t> op::Reader<'t, '_> {
    fn streams(&mut self, view: View<'t>) -> Result<(), Fault> {
        for (name, value) in declared(view)? {
            let (value, priority) = kind_with(value, "priority", &format!("stream `{name}`"))?;
            let text = scalars::text(value, "the kind of a stream")?;
            let (word, device) = match text.split_once('@') {
                Some((word, number)) => (word, device_number(number, self.limits)),
                None => (text, Some(DeviceId(0))),
            };
            let (Some(kind), Some(device)) = (STREAM_KINDS.find(word), device) else {
                let (words, most) = (STREAM_KINDS.listed(), self.limits.device);
                let words = format!("{words}, with `@N` for device N, up to {most}");
                let what = format!("a kind for stream `{name}`");
                return Err(scalars::unknown(value, &what, &words));
            };
            // Only legacy streams are compared: there may be very many others.
            let is_twin =
                |stream: &&StreamDecl| stream.kind == StreamKind::Legacy && stream.device == device;
            let legacy = (kind == StreamKind::Legacy).then_some(&self.program.streams);
            if let Some(twin) = legacy.into_iter().flatten().find(is_twin) {
                return Err(value.fault(format!(
                    "`{name}` is the legacy stream of device {}, which is `{}` already; use one name",
                    device.0, twin.name
                )));
            }
            let origin = Origin::Declared;
            let StreamRef(at) =
                (self.names).declare_stream(self.program, name, kind, device, origin);
            if let Some(view) = priority {
                self.program.streams[at as usize].priority = priority_of(view, name, kind)?;
            }
        }
        Ok(())
    }

    fn buffers(&mut self, view: View<'t>) -> Result<(), Fault> {
        for (name, value) in declared(view)? {
            let (kind, bytes) = kind_with(value, "bytes", &format!("buffer `{name}`"))?;
            let bytes = bytes.map(|bytes| {
                let bytes = scalars::integer(bytes, 0, self.limits.buffer_bytes);
                bytes.map_err(|fault| fault.in_field("bytes"))
            });
            let size_bytes = bytes.transpose()?.unwrap_or(DEFAULT_BYTES);
            let word = scalars::text(kind, "the kind of a buffer")?;
            let memory = MEMORIES.find(word).ok_or_else(|| {
                let what = format!("a kind for buffer `{name}`");
                scalars::unknown(kind, &what, &MEMORIES.listed())
            })?;
            (self.names).declare_buffer(self.program, name, memory, size_bytes, false);
        }
        Ok(())
    }

    fn events(&mut self, view: View<'t>) -> Result<(), Fault> {
        for (name, value) in declared(view)? {
            let text = scalars::text(value, "the kind of an event")?;
            let device = text.strip_prefix("dev");
            let device = device.and_then(|number| device_number(number, self.limits));
            if text != "no_timing" && device.is_none() {
                let what = format!("a kind for event `{name}`");
                let most = self.limits.device;
                let words = format!("`no_timing` or `devN` for device N, up to {most}");
                return Err(scalars::unknown(value, &what, &words));
            }
            (self.names).declare_event(self.program, name, device.is_some(), device, false);
        }
        Ok(())
    }
}

/// Reads a kind, given alone or in a mapping with one optional key.
fn kind_with<'t>(
    value: View<'t>,
    key: &str,
    whose: &str,
) -> Result<(View<'t>, Option<View<'t>>), Fault> {
    let Kind::Mapping(_) = value.kind() else {
        return Ok((value, None));
    };
    let record = Record::read(value, &format!("a `kind` and `{key}`"))?;
    record.only(
        |found| found == "kind" || found == key,
        || format!("{whose} has a `kind` and `{key}`"),
    )?;
    let kind = record.need("kind", format!("{whose} has no `kind`; add one"))?;
    Ok((kind, record.get(key)))
}

fn priority_of(view: View<'_>, name: &str, kind: StreamKind) -> Result<i32, Fault> {
    let number = scalars::signed(view, i32::MIN.into(), i32::MAX.into());
    let number = number.map_err(|fault| fault.in_field("priority"))?;
    if !matches!(kind, StreamKind::NonBlocking | StreamKind::Blocking) {
        let message = format!(
            "`{name}` is a default stream, whose priority is 0; give one to a stream of kind `nb` or `blk`"
        );
        return Err(view.fault(message).in_field("priority"));
    }
    Ok(number as i32)
}

fn device_number(digits: &str, limits: &Limits) -> Option<DeviceId> {
    let number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let device = digits.parse().ok().filter(|_| number)?;
    (device <= u32::from(limits.device)).then_some(DeviceId(device))
}
