//! The trace as lines of text: a lane for each stream, then a lane for each engine.

use std::fmt;

use super::{Engine, Trace, What, Work};
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
        let start_ns = trace.work.iter().map(|w| w.start_ns).min().unwrap_or(0);
        Timeline {
            trace,
            columns: columns.max(20),
            start_ns,
            end_ns: trace.end_ns(),
        }
    }

    /// Only the stretch between two times.
    pub fn between(mut self, start_ns: u64, end_ns: u64) -> Timeline<'a> {
        (self.start_ns, self.end_ns) = (start_ns, end_ns.max(start_ns + 1));
        self
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
        let names = lanes.iter().flat_map(|(_, s, e)| s.iter().chain(e));
        let label = names
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0)
            .max(6);
        let (from, to) = (us(self.start_ns), us(self.end_ns));
        let gap = self.columns.saturating_sub(from.len() + to.len());
        writeln!(f, "  {:label$}  {from}{:gap$}{to}", "", "")?;
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
