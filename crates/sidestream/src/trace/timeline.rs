//! The trace as lines of text: a lane for each host thread that works for long enough to be seen, a
//! lane for each stream, then a lane for each engine.

use std::fmt;

use super::{Call, Engine, Trace, What, Work};
use crate::op::{DeviceId, StreamId};

/// A picture of a stretch of a [`Trace`] for the terminal; print it.
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    trace: &'a Trace,
    columns: usize,
    start_ns: u64,
    end_ns: u64,
}

impl<'a> Timeline<'a> {
    /// A picture of the whole trace, this many columns wide.
    pub fn new(trace: &'a Trace, columns: usize) -> Timeline<'a> {
        let (columns, end_ns) = (columns.max(20), trace.end_ns());
        // What the host does itself counts from one column on; calls that only submit do not.
        let column_ns = end_ns / columns as u64;
        let host = trace.calls.iter().filter(|call| is_seen(call, column_ns));
        let starts = host
            .map(|call| call.start_ns)
            .chain(trace.work.iter().map(|work| work.start_ns));
        Timeline {
            trace,
            columns,
            start_ns: starts.min().unwrap_or(0),
            end_ns,
        }
    }

    /// Only the stretch between two times.
    pub fn between(mut self, start_ns: u64, end_ns: u64) -> Timeline<'a> {
        (self.start_ns, self.end_ns) = (start_ns, end_ns.max(start_ns + 1));
        self
    }

    /// Lanes for the host threads that read or write memory for long.
    fn host_lanes(&self) -> Vec<(String, String)> {
        let column_ns = (self.end_ns - self.start_ns) / self.columns as u64;
        let mut lanes = Vec::new();
        for thread in &self.trace.threads {
            let calls = self.trace.calls.iter();
            let seen = calls.filter(|c| c.thread == thread.id && is_seen(c, column_ns));
            let mut cells = vec!['.'; self.columns];
            let mut any = false;
            for call in seen.filter(|c| c.end_ns > self.start_ns && c.start_ns < self.end_ns) {
                any = true;
                let from = self.column(call.start_ns);
                let to = self.column(call.end_ns).max(from + 1).min(self.columns);
                bar(&mut cells[from..to], &call.op.0.to_string(), 'h');
            }
            if any {
                lanes.push((
                    format!("{} (host)", thread.name),
                    cells.into_iter().collect(),
                ));
            }
        }
        lanes
    }

    /// One lane: bars for the work that `belongs` to it, dots where it is idle.
    fn lane(&self, belongs: impl Fn(&Work) -> bool) -> Option<String> {
        let mut cells = vec!['.'; self.columns];
        let mut any = false;
        let work = self.trace.work.iter();
        for work in work.filter(|w| w.what.engine().is_some() && belongs(w)) {
            if work.end_ns <= self.start_ns || work.start_ns >= self.end_ns {
                continue;
            }
            any = true;
            let from = self.column(work.start_ns);
            let to = self.column(work.end_ns).max(from + 1).min(self.columns);
            bar(&mut cells[from..to], &work.label, letter(work.what));
        }
        any.then(|| cells.into_iter().collect())
    }

    fn column(&self, at_ns: u64) -> usize {
        let span = (self.end_ns - self.start_ns).max(1);
        let into = at_ns.clamp(self.start_ns, self.end_ns) - self.start_ns;
        (into as u128 * self.columns as u128 / span as u128) as usize
    }

    fn stream_lanes(&self, device: DeviceId) -> Vec<(String, String)> {
        let mut lanes = Vec::new();
        for stream in self.trace.streams.iter().filter(|s| s.device == device) {
            let id: StreamId = stream.id;
            let lane = self.lane(|w| w.stream == id && w.device == device);
            lanes.extend(lane.map(|lane| (stream.name.clone(), lane)));
        }
        lanes
    }

    fn engine_lanes(&self, device: DeviceId) -> Vec<(String, String)> {
        let engines = [
            Engine::Upload,
            Engine::Compute,
            Engine::Download,
            Engine::Host,
        ];
        let mut lanes = Vec::new();
        for engine in engines {
            let lane = self.lane(|w| w.what.engine() == Some(engine) && w.device == device);
            lanes.extend(lane.map(|lane| (format!("({})", engine.name()), lane)));
        }
        lanes
    }
}

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes: Vec<_> = self
            .trace
            .devices
            .iter()
            .map(|device| {
                let streams = self.stream_lanes(device.id);
                let engines = self.engine_lanes(device.id);
                (device, streams, engines)
            })
            .collect();
        let host = self.host_lanes();
        let names = lanes.iter().flat_map(|(_, s, e)| s.iter().chain(e));
        let label = names
            .chain(&host)
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0)
            .max(6);
        let (from, to) = (us(self.start_ns), us(self.end_ns));
        let gap = self.columns.saturating_sub(from.len() + to.len());
        writeln!(f, "  {:label$}  {from}{:gap$}{to}", "", "")?;
        for (name, lane) in &host {
            writeln!(f, "  {name:label$} |{lane}|")?;
        }
        let several = lanes.iter().filter(|(_, s, _)| !s.is_empty()).count() > 1;
        for (device, streams, engines) in &lanes {
            if several && !streams.is_empty() {
                writeln!(f, "  GPU {}", device.id.0)?;
            }
            for (name, lane) in streams.iter().chain(engines) {
                writeln!(f, "  {name:label$} |{lane}|")?;
            }
        }
        Ok(())
    }
}

/// Whether a call is work of the host itself, and long enough for a picture.
fn is_seen(call: &Call, column_ns: u64) -> bool {
    call.is_host_work && call.end_ns - call.start_ns >= column_ns.max(1)
}

/// Draws one bar: its name in brackets where there is room, else a letter.
fn bar(cells: &mut [char], name: &str, letter: char) {
    let width = cells.len();
    if width < 3 {
        cells.fill(letter);
        return;
    }
    cells.fill('=');
    cells[0] = '[';
    cells[width - 1] = ']';
    let room = &mut cells[1..width - 1];
    if name.chars().count() <= room.len() {
        for (cell, c) in room.iter_mut().zip(name.chars()) {
            *cell = c;
        }
    } else {
        room[0] = letter;
    }
}

fn letter(what: What) -> char {
    match what {
        What::Kernel => 'K',
        What::Memset { .. } => 'M',
        What::HostFunc => 'H',
        What::Wait { .. } => 'w',
        What::Copy { from, to, .. } => match (from.is_host(), to.is_host()) {
            (true, false) => 'U',
            (false, true) => 'D',
            _ => 'C',
        },
    }
}

fn us(ns: u64) -> String {
    if ns < 10_000 {
        format!("{:.1} us", ns as f64 / 1e3)
    } else if ns < 10_000_000 {
        format!("{:.0} us", ns as f64 / 1e3)
    } else if ns < 10_000_000_000 {
        format!("{:.1} ms", ns as f64 / 1e6)
    } else {
        format!("{:.1} s", ns as f64 / 1e9)
    }
}
