//! `cargo xtask big-trace`: writes a trace of any size, to test how a reader handles it.
//!
//! The events of a real trace are repeated. Each repetition has later times and other IDs, as if the program had
//! continued.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::value::RawValue;

/// The ID fields of events that differ from one repetition to the next.
const IDS: [&str; 6] = [
    "correlation",
    "External id",
    "external id",
    "id",
    "Ev Idx",
    "wait_on_cuda_event_record_corr_id",
];

/// Writes the trace `from` to `to`, repeated until it has about `size_bytes`. A file that ends in `.gz` is
/// compressed.
pub fn run(from: &str, to: &str, size: &str) -> Result<bool> {
    let size_bytes = size_bytes(size)
        .with_context(|| format!("`{size}` is not a size; give one such as 644MB"))?;
    let packed = std::fs::read(from).with_context(|| format!("cannot read {from}"))?;
    let mut text = String::new();
    if from.ends_with(".gz") {
        let unpacked = MultiGzDecoder::new(&packed[..]).read_to_string(&mut text);
        unpacked.with_context(|| format!("cannot unpack {from}"))?;
    } else {
        text = String::from_utf8(packed).with_context(|| format!("{from} is not UTF-8 text"))?;
    }
    let trace = Trace::of(&text).with_context(|| format!("{from} has no list of events"))?;
    ensure!(trace.shift_us > 0, "{from} has no events with times");
    let file = File::create(to).with_context(|| format!("cannot write {to}"))?;
    let out = BufWriter::with_capacity(1 << 20, file);
    let (repeated, written) = if Path::new(to).extension().is_some_and(|e| e == "gz") {
        let mut out = GzEncoder::new(out, Compression::fast());
        let wrote = trace.write(&mut out, size_bytes)?;
        out.finish()?.flush()?;
        wrote
    } else {
        let mut out = out;
        let wrote = trace.write(&mut out, size_bytes)?;
        out.flush()?;
        wrote
    };
    println!("{to}: {from} {repeated} times, {written} bytes of JSON");
    Ok(true)
}

fn size_bytes(text: &str) -> Option<u64> {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// A trace, and what is added to the times and IDs of each repetition.
struct Trace<'t> {
    /// The text up to the bracket that opens the list of events.
    head: &'t str,
    events: &'t str,
    /// The text from the closing bracket of the list to the end.
    tail: &'t str,
    /// In microseconds; 0 if there are no times.
    shift_us: u64,
    shift_id: u64,
}

impl<'t> Trace<'t> {
    fn of(text: &'t str) -> Option<Trace<'t>> {
        let key = text.find("\"traceEvents\"")?;
        let open = key + text[key..].find('[')? + 1;
        let list = serde_json::Deserializer::from_str(&text[open - 1..]);
        let list: &RawValue = list.into_iter().next()?.ok()?;
        let close = open + list.get().len() - 2;
        let events = text[open..close].trim_end();
        let (mut first, mut last, mut highest) = (u64::MAX, 0, 0);
        repeat(events, &mut String::new(), |is_time, number| {
            if is_time {
                (first, last) = (first.min(number), last.max(number));
            } else {
                highest = highest.max(number);
            }
            number
        });
        Some(Trace {
            head: &text[..open],
            events,
            tail: &text[close..],
            shift_us: last.checked_sub(first).map_or(0, |us| us + 1_000),
            shift_id: highest + 1,
        })
    }

    /// Writes the repeated events. Returns the number of repetitions, and of bytes in all.
    fn write(&self, out: &mut impl Write, size_bytes: u64) -> Result<(u64, u64)> {
        out.write_all(self.head.as_bytes())?;
        let mut written = (self.head.len() + self.tail.len()) as u64;
        let mut repeated = 0;
        let mut line = String::new();
        loop {
            repeat(self.events, &mut line, |is_time, number| {
                if is_time {
                    number + repeated * self.shift_us
                } else {
                    // CUPTI's IDs have 32 bits.
                    (number + repeated * self.shift_id) % (1 << 32)
                }
            });
            out.write_all(line.as_bytes())?;
            written += line.len() as u64;
            repeated += 1;
            if written + line.len() as u64 > size_bytes {
                break;
            }
            line.replace_range(.., ",");
        }
        out.write_all(self.tail.as_bytes())?;
        Ok((repeated, written))
    }
}

/// Adds the events to a text, with other times and IDs: `other` is given the integer part of each, and whether it is a time.
fn repeat(events: &str, out: &mut String, mut other: impl FnMut(bool, u64) -> u64) {
    let mut key = "";
    for (nth, part) in events.split("\": ").enumerate() {
        if nth > 0 {
            out.push_str("\": ");
        }
        let digits = part.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = part.split_at(digits.unwrap_or(part.len()));
        match digits.parse() {
            Ok(number) if key == "ts" || IDS.contains(&key) => {
                out.push_str(&other(key == "ts", number).to_string());
                out.push_str(rest);
            }
            _ => out.push_str(part),
        }
        key = part.rsplit('"').next().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_comes_later_and_has_other_ids() {
        let text = r#"{"a": [1], "traceEvents": [
{"name": "x]", "ts": 100.25, "dur": 5, "args": {"correlation": 7}},
{"name": "y", "ts": 200.5, "id": 3}
], "b": 1}"#;
        let trace = Trace::of(text).expect("a trace");
        let mut out = Vec::new();
        let size_bytes = 2 * text.len() as u64;
        let (repeated, written) = trace.write(&mut out, size_bytes).expect("memory");
        let out = String::from_utf8(out).expect("text");
        assert_eq!((repeated, written), (2, out.len() as u64));
        let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let events = value["traceEvents"].as_array().expect("a list");
        let times: Vec<f64> = events.iter().filter_map(|e| e["ts"].as_f64()).collect();
        assert_eq!(times, [100.25, 200.5, 1200.25, 1300.5]);
        assert_eq!(events[2]["args"]["correlation"], 15);
        assert_eq!(events[3]["id"], 11);
        assert_eq!(value["b"], 1);
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size_bytes("644MB"), Some(644_000_000));
        assert_eq!(size_bytes("2GB"), Some(2_000_000_000));
        assert_eq!(size_bytes("644"), None);
        assert_eq!(size_bytes("MB"), None);
    }
}
