//! Reads traces in Chrome's JSON: those of PyTorch's profiler, of every year, and Sidestream's own.
//!
//! The file is read through a window and never held in memory as a whole. An event that cannot be read is skipped and counted;
//! a file that ends too early is read up to its end.

mod base;
mod cursor;
mod decimal;
mod kineto;
mod row;
mod window;

use std::io::Read;

use super::{Limits, Problem};
use crate::model::{Base, Device, Source, Trace};
use cursor::{Cursor, Stop, Value};
use kineto::Kineto;
use row::Row;
use window::{End, Window};

/// The maximum number of bytes that are read a second time because of damaged events, before the rest is given up.
const MOST_WASTED_BYTES: u64 = 256 << 20;
/// The number of events that are read between two checks of the limits.
const EVENTS_A_LOOK: u64 = 4096;

/// Reads a trace. `look` is called repeatedly with the number of bytes read so far.
///
/// # Errors
/// The text is not a trace, or is a trace without device work.
pub fn read(
    input: impl Read,
    limits: &Limits,
    look: &mut dyn FnMut(u64) -> Result<(), Problem>,
) -> Result<Trace, Problem> {
    let mut reading = Reading {
        window: Window::new(input),
        kineto: Kineto::new(limits.python),
        limits,
        look,
        damaged: 0,
        wasted_bytes: 0,
        cut: None,
    };
    let has_events = reading.whole()?;
    reading.finish(has_events)
}

/// A file that is being read.
struct Reading<'l, R> {
    window: Window<R>,
    kineto: Kineto,
    limits: &'l Limits,
    look: &'l mut dyn FnMut(u64) -> Result<(), Problem>,
    /// Number of events that could not be read.
    damaged: u64,
    wasted_bytes: u64,
    /// Why the trace is incomplete: the code and the sentence of a warning.
    cut: Option<(&'static str, String)>,
}

impl<R: Read> Reading<'_, R> {
    /// Reads the file; returns whether it has a list of events.
    fn whole(&mut self) -> Result<bool, Problem> {
        // Some editors write a byte order mark at the start.
        self.window.more();
        if self.window.bytes().starts_with(b"\xef\xbb\xbf") {
            self.window.consume(3);
        }
        match self.peek() {
            Some(b'[') => {
                self.window.consume(1);
                self.events()?;
                Ok(true)
            }
            Some(b'{') => {
                self.window.consume(1);
                self.members()
            }
            Some(_) => Err(Problem::NotATrace),
            None => match self.window.ended() {
                Some(End::Whole) | None => Err(Problem::Empty),
                Some(End::Failed(_)) => Ok(false),
            },
        }
    }

    /// Reads the members of the outermost object, up to its end; returns whether one was the list of events.
    fn members(&mut self) -> Result<bool, Problem> {
        let mut has_events = false;
        while self.cut.is_none() {
            let Some(member) = self.member()? else {
                break;
            };
            match member {
                Member::Events => {
                    has_events = true;
                    self.events()?;
                }
                Member::Properties => self.properties()?,
                Member::Other => self.pass()?,
            }
        }
        Ok(has_events)
    }

    /// Reads the next key with its colon; returns how its value is treated.
    fn member(&mut self) -> Result<Option<Member>, Problem> {
        loop {
            let mut cursor = Cursor::new(self.window.bytes());
            let key = cursor.key();
            let at = cursor.at();
            let outcome = match key {
                Ok(None) => Ok(None),
                Ok(Some(b"traceEvents")) => match cursor.peek() {
                    Ok(b'[') => Ok(Some((Member::Events, cursor.at() + 1))),
                    Ok(_) => Err(Stop::Bad),
                    Err(stop) => Err(stop),
                },
                Ok(Some(b"deviceProperties" | b"distributedInfo" | base::KEY)) => {
                    // The key is read again with its value.
                    Ok(Some((Member::Properties, 0)))
                }
                Ok(Some(key)) => {
                    if key == b"sidestream" {
                        self.kineto.builder.trace.source = Source::Sidestream;
                    }
                    Ok(Some((Member::Other, at)))
                }
                Err(stop) => Err(stop),
            };
            match outcome {
                Ok(None) => return Ok(None),
                Ok(Some((member, used))) => {
                    self.window.consume(used);
                    return Ok(Some(member));
                }
                Err(Stop::More) if self.window.more() => {}
                Err(Stop::More) => {
                    self.ended_inside("the outermost object");
                    return Ok(None);
                }
                Err(Stop::Bad) => {
                    return Err(Problem::Malformed {
                        offset: self.window.offset(),
                        why: "this is not JSON: a member of the outermost object is expected here"
                            .to_owned(),
                    });
                }
            }
        }
    }

    /// Reads a member that describes the machine, starting at its key.
    fn properties(&mut self) -> Result<(), Problem> {
        loop {
            let mut cursor = Cursor::new(self.window.bytes());
            let outcome = cursor.key().and_then(|key| Ok((key, cursor.value()?)));
            let used = cursor.at();
            let described = match outcome {
                Ok((Some(base::KEY), value)) => {
                    measured(&mut self.kineto, value);
                    Ok(())
                }
                Ok((key, Value::Object(whole) | Value::Array(whole))) => {
                    // An invalid value here is ignored, since it is not needed.
                    if let Ok(value) = serde_json::from_slice(whole) {
                        match key {
                            Some(b"deviceProperties") => devices(&mut self.kineto, &value),
                            _ => rank(&mut self.kineto, &value),
                        }
                    }
                    Ok(())
                }
                Ok(_) => Ok(()),
                Err(stop) => Err(stop),
            };
            match described {
                Ok(()) => {}
                Err(Stop::More) if self.window.more() => continue,
                Err(Stop::More) if self.window.ended().is_some() => {
                    self.ended_inside("the properties of the devices");
                    return Ok(());
                }
                Err(_) => {
                    // A damaged value is skipped like that of any other member.
                    let mut cursor = Cursor::new(self.window.bytes());
                    let _ = cursor.key();
                    let used = cursor.at();
                    self.window.consume(used);
                    return self.pass();
                }
            }
            self.window.consume(used);
            return Ok(());
        }
    }

    /// Skips a value of any length.
    fn pass(&mut self) -> Result<(), Problem> {
        let mut depth = 0u64;
        let mut in_string = false;
        let mut escaped = false;
        let mut begun = false;
        loop {
            let mut used = 0;
            let mut over = false;
            for byte in self.window.bytes() {
                if in_string {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => in_string = false,
                        _ => {}
                    }
                } else {
                    match byte {
                        b'"' => in_string = true,
                        b'{' | b'[' => depth += 1,
                        // The value ends before the comma or the bracket that follows it.
                        b',' | b'}' | b']' if depth == 0 => {
                            over = true;
                            break;
                        }
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                }
                begun |= !byte.is_ascii_whitespace();
                used += 1;
            }
            self.window.consume(used);
            if over && begun {
                return Ok(());
            }
            if over {
                return Err(Problem::Malformed {
                    offset: self.window.offset(),
                    why: "this is not JSON: a value is missing here".to_owned(),
                });
            }
            (self.look)(self.window.offset())?;
            if !self.window.more() {
                self.ended_inside("the outermost object");
                return Ok(());
            }
        }
    }

    /// Reads the events, up to the bracket that closes their list.
    fn events(&mut self) -> Result<(), Problem> {
        let mut until_look = EVENTS_A_LOOK;
        loop {
            let mut cursor = Cursor::new(self.window.bytes());
            let next = match cursor.peek() {
                Ok(b',') => {
                    let used = cursor.at() + 1;
                    self.window.consume(used);
                    continue;
                }
                Ok(b']') => {
                    let used = cursor.at() + 1;
                    self.window.consume(used);
                    return Ok(());
                }
                Ok(b'{') => Row::read(&mut cursor),
                Ok(_) => Err(Stop::Bad),
                Err(stop) => Err(stop),
            };
            let used = cursor.at();
            let taken = match next {
                Ok(row) if row.is_event() => {
                    self.kineto.take(&row).map_err(Problem::Overflow)?;
                    Ok(())
                }
                Ok(_) => {
                    self.damaged += 1;
                    Ok(())
                }
                Err(stop) => Err(stop),
            };
            match taken {
                Ok(()) => self.window.consume(used),
                Err(Stop::More) if self.window.more() => {}
                Err(Stop::More) if self.window.ended().is_some() => {
                    self.ended_inside("the list of events");
                    return Ok(());
                }
                Err(_) => {
                    if !self.recover(used) {
                        return Ok(());
                    }
                }
            }
            until_look -= 1;
            if until_look == 0 {
                until_look = EVENTS_A_LOOK;
                (self.look)(self.window.offset())?;
                if self.kineto.builder.kept_bytes() > self.limits.rows_bytes {
                    let megabytes = self.limits.rows_bytes >> 20;
                    let why = format!(
                        "the file was not read to its end: its events take more than {megabytes} MiB"
                    );
                    self.cut = Some(("LIMIT", why));
                    return Ok(());
                }
            }
        }
    }

    /// Continues at the next event after one that cannot be read; returns false if there is none.
    fn recover(&mut self, looked: usize) -> bool {
        self.damaged += 1;
        self.wasted_bytes += looked as u64;
        if self.wasted_bytes > MOST_WASTED_BYTES {
            let at = self.window.offset();
            let why =
                format!("the file was given up at byte {at} of its text: too much is damaged");
            self.cut = Some(("DAMAGED", why));
            return false;
        }
        // Skip one byte, so that the same event is not found again.
        self.window.consume(1);
        loop {
            let is_end = self.window.ended().is_some();
            match next_event(self.window.bytes(), is_end) {
                Ok(at) => {
                    self.window.consume(at);
                    return true;
                }
                Err(passed) => {
                    self.window.consume(passed);
                    if (self.look)(self.window.offset()).is_err() || !self.window.more() {
                        self.ended_inside("the list of events");
                        return false;
                    }
                }
            }
        }
    }

    /// Returns the next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let mut cursor = Cursor::new(self.window.bytes());
            let byte = cursor.peek();
            let used = cursor.at();
            self.window.consume(used);
            if byte.is_ok() {
                return byte.ok();
            }
            if (self.look)(self.window.offset()).is_err() || !self.window.more() {
                return None;
            }
        }
    }

    fn ended_inside(&mut self, what: &str) {
        // In a compressed file, positions refer to the unpacked text.
        let at = self.window.offset() + self.window.bytes().len() as u64;
        let why = match self.window.ended() {
            Some(End::Failed(error)) => {
                format!("what follows byte {at} of its text cannot be read ({error})")
            }
            _ => format!("the file ends at byte {at} of its text, inside {what}"),
        };
        self.cut = Some(("TRUNCATED", why));
    }

    fn finish(self, has_events: bool) -> Result<Trace, Problem> {
        // The callback returns an error if a limit was reached while the end of the file was read.
        (self.look)(self.window.offset())?;
        let incomplete = self.kineto.incomplete;
        let mut builder = self.kineto.finish();
        if self.damaged > 0 && builder.trace.events == 0 {
            return Err(Problem::NotATrace);
        }
        if let Some((code, why)) = self.cut {
            if builder.rows().work == 0 {
                return Err(Problem::Cut { why });
            }
            let events = builder.trace.events;
            let word = if events == 1 { "event" } else { "events" };
            let text = format!("{why}; all figures are of the {events} {word} before that");
            builder.warn(code, text);
        } else if !has_events {
            return Err(Problem::NoEvents);
        }
        if builder.rows().work == 0 && self.limits.needs_work {
            return Err(Problem::NoWork(builder.asked()));
        }
        if self.damaged > 0 {
            let places = self.damaged;
            builder.warn(
                "DAMAGED",
                format!("{places} places in the list of events cannot be read and are left out"),
            );
        }
        if incomplete > 0 {
            let events = incomplete;
            builder.warn(
                "INCOMPLETE",
                format!("{events} events have no valid time and are left out"),
            );
        }
        builder.one_process();
        Ok(builder.finish())
    }
}

/// How a member of the outermost object is treated.
enum Member {
    Events,
    Properties,
    Other,
}

/// Returns where the next event starts: a brace after a comma or after the bracket of the list, followed by a key of events.
/// Otherwise returns how many bytes certainly contain no start.
fn next_event(bytes: &[u8], is_end: bool) -> Result<usize, usize> {
    /// Enough for white space and the longest of these keys.
    const AHEAD: usize = 64;
    const KEYS: [&[u8]; 9] = [
        b"ph", b"cat", b"name", b"pid", b"tid", b"ts", b"dur", b"args", b"id",
    ];
    let mut last = b' ';
    let mut from = 0;
    while let Some(found) = memchr::memchr(b'{', &bytes[from..]) {
        let at = from + found;
        let before = bytes[from..at]
            .iter()
            .rev()
            .find(|b| !b.is_ascii_whitespace());
        last = before.copied().unwrap_or(last);
        if bytes.len() - at < AHEAD && !is_end {
            return Err(at.saturating_sub(AHEAD));
        }
        let mut cursor = Cursor::new(&bytes[at..]);
        let key = cursor.expect(b'{').and_then(|()| cursor.key());
        if matches!(last, b',' | b'[')
            && let Ok(Some(key)) = key
            && KEYS.contains(&key)
        {
            return Ok(at);
        }
        last = b'{';
        from = at + 1;
    }
    // The comma or bracket before the next event may be among the last bytes here.
    Err(bytes.len().saturating_sub(AHEAD))
}

/// Reads the time of a step before the profiler started. Damage is reported, since predictions are based on this time.
fn measured(kineto: &mut Kineto, value: Value) {
    let read = match value {
        Value::Object(whole) => serde_json::from_slice(whole)
            .map_err(|_| "it is not JSON".to_owned())
            .and_then(|value| base::unprofiled(&value)),
        _ => Err("it is not an object".to_owned()),
    };
    match read {
        Ok(unprofiled) => kineto.builder.trace.base = Base::Measured(unprofiled),
        Err(why) => {
            let text = format!(
                "the step without the profiler that the trace states is left out, since {why}"
            );
            kineto.builder.warn("BASE", text);
        }
    }
}

fn devices(kineto: &mut Kineto, value: &serde_json::Value) {
    for device in value.as_array().into_iter().flatten() {
        let number = |key: &str| device[key].as_u64().and_then(|n| u32::try_from(n).ok());
        if let Some(about) = device["simulated"]
            .as_str()
            .filter(|about| !about.is_empty())
        {
            let text = format!("the GPU was simulated, {about}");
            kineto.builder.warn("SIMULATED", text);
        }
        kineto.builder.device(Device {
            id: device["id"].as_i64().unwrap_or(0),
            name: device["name"].as_str().unwrap_or("").to_owned(),
            sms: number("numSms"),
            memory_bytes: device["totalGlobalMem"].as_u64(),
            compute: number("computeMajor").zip(number("computeMinor")),
            copy_engines: None,
        });
    }
}

fn rank(kineto: &mut Kineto, value: &serde_json::Value) {
    let number = |key: &str| value[key].as_u64().and_then(|n| n.try_into().ok());
    if let Some(rank) = number("rank") {
        kineto.builder.trace.rank = Some(rank);
    }
    if let Some(world) = number("world_size") {
        kineto.builder.trace.world = Some(world);
    }
}
