//! Draws a trace as text: a lane for each host thread whose work is long enough to be visible, a lane for each
//! stream, then a lane for each engine.

use std::fmt;

use super::{Call, Device, Engine, Trace, What, Work};
use crate::op::{DeviceId, StreamId};

/// A drawing of a part of a [`Trace`] for the terminal, to be printed.
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    trace: &'a Trace,
    columns: usize,
    /// The largest width of a line, names included.
    within: Option<usize>,
    start_ns: u64,
    end_ns: u64,
}

/// A lane: its name, and its drawing.
type Lane = (String, String);

/// The lanes of the host threads, and of the streams and engines of each device.
struct Lanes<'a> {
    host: Vec<Lane>,
    devices: Vec<(&'a Device, Vec<Lane>, Vec<Lane>)>,
}

/// The smallest width of a drawing, however narrow the lines.
const FEWEST: usize = 8;

impl<'a> Timeline<'a> {
    /// Returns a drawing of the whole trace, this many columns wide; the names of the lanes precede it.
    pub fn new(trace: &'a Trace, columns: usize) -> Timeline<'a> {
        let (columns, end_ns) = (columns.max(20), trace.end_ns());
        // Work of the host itself is shown if it takes at least one column; calls that only submit are not.
        let column_ns = end_ns / columns as u64;
        let host = trace.calls.iter().filter(|call| is_seen(call, column_ns));
        let starts = host
            .map(|call| call.start_ns)
            .chain(trace.work.iter().map(|work| work.start_ns));
        Timeline {
            trace,
            columns,
            within: None,
            start_ns: starts.min().unwrap_or(0),
            end_ns,
        }
    }

    /// Restricts the drawing to the part between two times.
    pub fn between(mut self, start_ns: u64, end_ns: u64) -> Timeline<'a> {
        (self.start_ns, self.end_ns) = (start_ns, end_ns.max(start_ns + 1));
        self
    }

    /// Limits lines to this many columns, names included, so that a terminal of this width does not wrap them. If needed, the
    /// drawing is made narrower, and names longer than a third of a line are shortened.
    pub fn within(mut self, columns: usize) -> Timeline<'a> {
        self.within = Some(columns);
        self
    }

    /// Returns the widths of the names and of the drawing within the limit.
    fn fitted(&self, lanes: &Lanes<'_>) -> (usize, usize) {
        let label = lanes.longest_name();
        let Some(line) = self.within else {
            return (label, self.columns);
        };
        let label = label.min((line / 3).max(SHORTEST));
        let left = line.saturating_sub(label + AROUND).max(FEWEST);
        (label, left.min(self.columns))
    }

    fn lanes(&self) -> Lanes<'a> {
        let devices = self.trace.devices.iter().map(|device| {
            let streams = self.stream_lanes(device.id);
            (device, streams, self.engine_lanes(device.id))
        });
        Lanes {
            host: self.host_lanes(),
            devices: devices.collect(),
        }
    }

    /// Returns lanes for the host threads that read or write memory long enough to be visible.
    fn host_lanes(&self) -> Vec<Lane> {
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

    /// Returns one lane: bars for the work that `belongs` to it, dots where it is idle.
    fn lane(&self, belongs: impl Fn(&Work) -> bool) -> Option<String> {
        let mut cells = vec!['.'; self.columns];
        let mut any = false;
        // All launches of one operation are one bar.
        let bars = self
            .trace
            .work
            .chunk_by(|a, b| a.op == b.op && a.what == b.what);
        let bars = bars.filter_map(|bar| Some((&bar[0], bar.last()?.end_ns)));
        for (work, end_ns) in bars.filter(|(w, _)| w.what.engine().is_some() && belongs(w)) {
            if end_ns <= self.start_ns || work.start_ns >= self.end_ns {
                continue;
            }
            any = true;
            let from = self.column(work.start_ns);
            let to = self.column(end_ns).max(from + 1).min(self.columns);
            bar(&mut cells[from..to], &work.label, letter(work.what));
        }
        any.then(|| cells.into_iter().collect())
    }

    fn column(&self, at_ns: u64) -> usize {
        let span = (self.end_ns - self.start_ns).max(1);
        let into = at_ns.clamp(self.start_ns, self.end_ns) - self.start_ns;
        (into as u128 * self.columns as u128 / span as u128) as usize
    }

    fn stream_lanes(&self, device: DeviceId) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for stream in self.trace.streams.iter().filter(|s| s.device == device) {
            let id: StreamId = stream.id;
            let lane = self.lane(|w| w.stream == id && w.device == device);
            lanes.extend(lane.map(|lane| (stream.name.clone(), lane)));
        }
        lanes
    }

    fn engine_lanes(&self, device: DeviceId) -> Vec<Lane> {
        let engines = [
            Engine::Upload,
            Engine::Compute,
            Engine::Download,
            Engine::PeerCopy,
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

impl Lanes<'_> {
    fn longest_name(&self) -> usize {
        let of_devices = self.devices.iter().flat_map(|(_, s, e)| s.iter().chain(e));
        let names = of_devices.chain(&self.host);
        let longest = names.map(|(name, _)| name.chars().count()).max();
        longest.unwrap_or(0).max(SHORTEST)
    }
}

/// The smallest width of the names of lanes.
const SHORTEST: usize = 6;
/// The columns of a line besides the name and the drawing: the margin, and a border at each side.
const AROUND: usize = 5;

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The lanes determine the width of the names, and so the width that is left for the drawing.
        let (label, columns) = self.fitted(&self.lanes());
        let drawn = Timeline {
            columns,
            ..self.clone()
        };
        let lanes = drawn.lanes();
        let (from, to) = (us(self.start_ns), us(self.end_ns));
        let gap = columns.saturating_sub(from.chars().count() + to.chars().count());
        writeln!(f, "  {:label$}  {from}{:gap$}{to}", "", "")?;
        for lane in &lanes.host {
            write_lane(f, lane, label)?;
        }
        let devices = lanes.devices.iter();
        let several = devices.filter(|(_, s, _)| !s.is_empty()).count() > 1;
        for (device, streams, engines) in &lanes.devices {
            if several && !streams.is_empty() {
                writeln!(f, "  GPU {}", device.id.0)?;
            }
            for lane in streams.iter().chain(engines) {
                write_lane(f, lane, label)?;
            }
        }
        Ok(())
    }
}

fn write_lane(f: &mut fmt::Formatter<'_>, (name, lane): &Lane, label: usize) -> fmt::Result {
    let name = shortened(name, label);
    writeln!(f, "  {name:label$} |{lane}|")
}

/// Removes the middle of a name that is too long: names with a common beginning mostly differ at the end.
fn shortened(name: &str, columns: usize) -> String {
    let count = name.chars().count();
    if count <= columns {
        return name.to_owned();
    }
    let start = columns.saturating_sub(1).div_ceil(2);
    let end = columns.saturating_sub(1) - start;
    let start: String = name.chars().take(start).collect();
    let end: String = name.chars().skip(count - end).collect();
    format!("{start}…{end}")
}

/// Whether a call is work of the host itself, and long enough to be visible.
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
        What::CopyPeer { .. } => 'P',
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
        format!("{:.1} µs", ns as f64 / 1e3)
    } else if ns < 10_000_000 {
        format!("{:.0} µs", ns as f64 / 1e3)
    } else if ns < 10_000_000_000 {
        format!("{:.1} ms", ns as f64 / 1e6)
    } else {
        format!("{:.1} s", ns as f64 / 1e9)
    }
}
