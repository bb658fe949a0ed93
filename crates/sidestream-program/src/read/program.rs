//! Reads one program: its keys, its declarations, its list of ops.

use sidestream::op::{DeviceId, StreamKind};

use crate::error::{BadProgram, Fault, shown};
use crate::expect::Expect;
use crate::limits::Limits;
use crate::names::{DEFAULT_BYTES, Names};
use crate::program::{Op, Origin, Program, StreamRef};
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
        let message = format!("`{key}` is missing; every program has a `name` and `ops`");
        record
            .get(key)
            .ok_or_else(|| Fault::new(record.line, message).in_field(key))
    };

    let mut program = Program {
        name: scalars::name(need("name")?)
            .map_err(|f| f.in_field("name"))?
            .to_owned(),
        ..Program::default()
    };
    names.thread(&mut program, "t0");
    in_key(&record, "level", |view| {
        program.level = scalars::word(view, &LEVELS, "a level")?;
        Ok(())
    })?;
    in_key(&record, "streams", |view| {
        streams(view, names, &mut program, limits)
    })?;
    in_key(&record, "buffers", |view| {
        buffers(view, names, &mut program, limits)
    })?;
    in_key(&record, "events", |view| {
        events(view, names, &mut program, limits)
    })?;
    in_key(&record, "from", |view| {
        program.from = Some(scalars::text(view, "text")?.to_owned());
        Ok(())
    })?;
    in_key(&record, "note", |view| {
        program.note = Some(scalars::text(view, "text")?.to_owned());
        Ok(())
    })?;
    in_key(&record, "rules", |view| {
        program.rules = rules(view)?;
        Ok(())
    })?;

    let ops = scalars::list(need("ops")?, "ops").map_err(|f| f.in_field("ops"))?;
    if ops.len() > limits.ops {
        let message = format!("{} ops are more than the {} allowed", ops.len(), limits.ops);
        return Err(Fault::new(record.line, message).in_field("ops"));
    }
    program.ops = read_ops(ops, names, &mut program, limits)?;

    let mut expected: Option<Expect> = None;
    in_key(&record, "expect", |view| {
        expected = Some(expect::read(view, names, program.ops.len())?);
        Ok(())
    })?;
    program.expect = expected;
    Ok(program)
}

fn read_ops<'t>(
    views: Items<'t>,
    names: &mut Names<'t>,
    program: &mut Program,
    limits: &Limits,
) -> Result<Vec<Op>, Fault> {
    let mut reader = op::Reader::new(names, program, limits);
    let mut ops = Vec::with_capacity(views.len());
    for (at, view) in views.iter().enumerate() {
        ops.push(reader.read(view).map_err(|fault| Fault {
            at: Some(at),
            verb: op::verb_of(view).map(shown),
            ..fault
        })?);
    }
    Ok(ops)
}

/// Reads a key, if present, and names it in any error.
fn in_key<'t>(
    record: &Record<'t>,
    key: &str,
    read: impl FnOnce(View<'t>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    match record.get(key) {
        Some(view) => read(view).map_err(|fault| fault.in_field(key)),
        None => Ok(()),
    }
}

pub(super) fn check_version(record: &Record<'_>) -> Result<(), Fault> {
    in_key(record, "version", |view| {
        scalars::integer(view, 1, 1).map(|_| ()).map_err(|fault| {
            let found = scalars::described(view);
            let message = format!("{found} is not a version of the format; this reader knows 1");
            Fault::new(fault.line, message)
        })
    })
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
            let message = format!(
                "`{}` is not a name; use a letter, then letters, digits and `_`, 255 at most",
                shown(key)
            );
            return Err(Fault::new(value.line(), message));
        }
    }
    Ok(record.entries)
}

fn streams<'t>(
    view: View<'t>,
    names: &mut Names<'t>,
    program: &mut Program,
    limits: &Limits,
) -> Result<(), Fault> {
    for (name, value) in declared(view)? {
        let (value, priority) = kind_with(value, "priority", &format!("stream `{name}`"))?;
        let text = scalars::text(value, "the kind of a stream")?;
        let (word, device) = match text.split_once('@') {
            Some((word, number)) => (word, device_number(number, limits)),
            None => (text, Some(DeviceId(0))),
        };
        let (Some(kind), Some(device)) = (STREAM_KINDS.find(word), device) else {
            let words = STREAM_KINDS.listed();
            let words = format!("{words}, with `@N` for device N, up to {}", limits.device);
            return Err(scalars::unknown(
                value,
                &format!("a kind for stream `{name}`"),
                &words,
            ));
        };
        // Only legacy streams are compared: there may be very many others.
        let legacy = (kind == StreamKind::Legacy).then_some(&program.streams);
        let twin = legacy
            .into_iter()
            .flatten()
            .find(|stream| stream.kind == StreamKind::Legacy && stream.device == device);
        if let Some(twin) = twin {
            let (twin, DeviceId(device)) = (&twin.name, device);
            return Err(Fault::new(
                value.line(),
                format!(
                    "`{name}` is the legacy stream of device {device}, which is `{twin}` already; use one name"
                ),
            ));
        }
        let StreamRef(at) = names.declare_stream(program, name, kind, device, Origin::Declared);
        if let Some(view) = priority {
            program.streams[at as usize].priority = priority_of(view, name, kind)?;
        }
    }
    Ok(())
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
    let kind = record.get("kind").ok_or_else(|| {
        let message = format!("{whose} has no `kind`; add one");
        Fault::new(record.line, message)
    })?;
    Ok((kind, record.get(key)))
}

fn priority_of(view: View<'_>, name: &str, kind: StreamKind) -> Result<i32, Fault> {
    let number = scalars::signed(view, i32::MIN.into(), i32::MAX.into());
    let number = number.map_err(|fault| fault.in_field("priority"))?;
    if !matches!(kind, StreamKind::NonBlocking | StreamKind::Blocking) {
        let message = format!(
            "`{name}` is a default stream, whose priority is 0; give one to a stream of kind `nb` or `blk`"
        );
        return Err(Fault::new(view.line(), message).in_field("priority"));
    }
    Ok(number as i32)
}

fn buffers<'t>(
    view: View<'t>,
    names: &mut Names<'t>,
    program: &mut Program,
    limits: &Limits,
) -> Result<(), Fault> {
    for (name, value) in declared(view)? {
        let (kind, bytes) = kind_with(value, "bytes", &format!("buffer `{name}`"))?;
        let bytes = bytes.map(|bytes| {
            scalars::integer(bytes, 0, limits.buffer_bytes).map_err(|f| f.in_field("bytes"))
        });
        let size_bytes = bytes.transpose()?.unwrap_or(DEFAULT_BYTES);
        let word = scalars::text(kind, "the kind of a buffer")?;
        let memory = MEMORIES.find(word).ok_or_else(|| {
            let what = format!("a kind for buffer `{name}`");
            scalars::unknown(kind, &what, &MEMORIES.listed())
        })?;
        names.declare_buffer(program, name, memory, size_bytes, false);
    }
    Ok(())
}

fn events<'t>(
    view: View<'t>,
    names: &mut Names<'t>,
    program: &mut Program,
    limits: &Limits,
) -> Result<(), Fault> {
    for (name, value) in declared(view)? {
        let text = scalars::text(value, "the kind of an event")?;
        let device = text
            .strip_prefix("dev")
            .and_then(|number| device_number(number, limits));
        if text != "no_timing" && device.is_none() {
            let words = format!(
                "`no_timing` or `devN` for device N, up to {}",
                limits.device
            );
            return Err(scalars::unknown(
                value,
                &format!("a kind for event `{name}`"),
                &words,
            ));
        }
        names.declare_event(program, name, device.is_some(), device, false);
    }
    Ok(())
}

fn device_number(digits: &str, limits: &Limits) -> Option<DeviceId> {
    let number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let device = digits.parse().ok().filter(|_| number)?;
    (device <= u32::from(limits.device)).then_some(DeviceId(device))
}
