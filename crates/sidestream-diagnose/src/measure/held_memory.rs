//! Memory of devices over time, and which parts of the program held it at the peak.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::model::{Allocated, Name, RangeKind, Trace};
use crate::sort::order_by;

/// The maximum number of points of time that are kept for a device: of each span, the point with the most memory.
const MOST_POINTS: usize = 400;
/// The maximum number of ranges around an allocation that are examined.
const NEAR: usize = 8;

/// Memory allocated on a device, or on the host.
#[derive(Clone, Debug, Default)]
pub struct DeviceMemory {
    /// The device; `None` for the host.
    pub device: Option<u16>,
    /// Number of allocations.
    pub taken: u64,
    /// Number of frees.
    pub given_back: u64,
    /// The maximum number of bytes allocated at one time.
    pub peak_bytes: u64,
    /// The time of that peak.
    pub peak_ns: i64,
    /// Bytes whose allocation the trace does not show: they were allocated before it began.
    pub before_bytes: u64,
    /// The places where the other memory was allocated, the largest first.
    pub holders: Vec<Holder>,
    /// Bytes allocated over time.
    pub points: Vec<(i64, u64)>,
}

/// Memory that was allocated at one place and not yet freed at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The innermost range of the program around it.
    pub range: Option<Name>,
    /// The innermost operator around it that does more than allocate memory.
    pub operator: Option<Name>,
    /// Number of allocations.
    pub pieces: u64,
    /// Bytes allocated.
    pub bytes: u64,
}

/// Where memory was allocated: the range, and the operator.
type Place = (Option<Name>, Option<Name>);

/// Returns the memory of each device that the trace shows, the host's last.
pub fn memory(trace: &Trace) -> Vec<DeviceMemory> {
    if trace.memory.is_empty() {
        return Vec::new();
    }
    let places = places(trace);
    let mut events: HashMap<Option<u16>, Vec<u32>> = HashMap::new();
    for (at, event) in trace.memory.iter().enumerate() {
        events.entry(event.device).or_default().push(at as u32);
    }
    let mut devices: Vec<DeviceMemory> = events
        .into_iter()
        .map(|(device, events)| of_device(trace, &places, device, &events))
        .collect();
    order_by(&mut devices, |of| (of.device.is_none(), of.device));
    devices
}

fn of_device(trace: &Trace, places: &[Place], device: Option<u16>, events: &[u32]) -> DeviceMemory {
    let mut of = DeviceMemory {
        device,
        ..DeviceMemory::default()
    };
    let mut levels = Levels::default();
    let mut peak_at = 0;
    for (place, at) in events.iter().enumerate() {
        let event = &trace.memory[*at as usize];
        let level = levels.next(event);
        if level > of.peak_bytes || place == 0 {
            (of.peak_bytes, of.peak_ns, peak_at) = (level, event.time_ns, place);
        }
        match event.bytes {
            1.. => of.taken += 1,
            _ => of.given_back += 1,
        }
    }
    // Allocations alive at the peak, by the place where they were made.
    let mut alive: HashMap<u64, (u64, Place)> = HashMap::new();
    for at in &events[..=peak_at.min(events.len().saturating_sub(1))] {
        let event = &trace.memory[*at as usize];
        match u64::try_from(event.bytes) {
            Ok(bytes) if bytes > 0 => {
                alive.insert(event.address, (bytes, places[*at as usize]));
            }
            _ => {
                alive.remove(&event.address);
            }
        }
    }
    let mut holders: HashMap<Place, Holder> = HashMap::new();
    let mut known_bytes = 0u64;
    for (bytes, place) in alive.into_values() {
        known_bytes = known_bytes.saturating_add(bytes);
        let holder = holders.entry(place).or_insert(Holder {
            range: place.0,
            operator: place.1,
            pieces: 0,
            bytes: 0,
        });
        holder.pieces += 1;
        holder.bytes = holder.bytes.saturating_add(bytes);
    }
    of.before_bytes = of.peak_bytes.saturating_sub(known_bytes);
    of.holders = holders.into_values().collect();
    order_by(&mut of.holders, |holder| {
        (Reverse(holder.bytes), holder.range, holder.operator)
    });
    of.points = points(trace, events);
    of
}

/// The allocated bytes after each event: as the trace states them, or the sum of the events.
#[derive(Default)]
struct Levels {
    sum: i64,
}

impl Levels {
    fn next(&mut self, event: &Allocated) -> u64 {
        self.sum = match event.total_bytes {
            Some(total) => i64::try_from(total).unwrap_or(i64::MAX),
            None => self.sum.saturating_add(event.bytes).max(0),
        };
        self.sum as u64
    }
}

/// Returns the levels: the highest in each of at most [`MOST_POINTS`] spans of equal length.
fn points(trace: &Trace, events: &[u32]) -> Vec<(i64, u64)> {
    let time = |at: &u32| trace.memory[*at as usize].time_ns;
    let (Some(first), Some(last)) = (events.first().map(time), events.last().map(time)) else {
        return Vec::new();
    };
    let stretch_ns = (first.abs_diff(last) / MOST_POINTS as u64).max(1);
    let mut levels = Levels::default();
    let mut points: Vec<(u64, i64, u64)> = Vec::new();
    for at in events {
        let event = &trace.memory[*at as usize];
        let level = levels.next(event);
        let stretch = first.abs_diff(event.time_ns) / stretch_ns;
        match points.last_mut() {
            Some(point) if point.0 == stretch => {
                if level >= point.2 {
                    (point.1, point.2) = (event.time_ns, level);
                }
            }
            _ => points.push((stretch, event.time_ns, level)),
        }
    }
    points
        .into_iter()
        .map(|(_, at, level)| (at, level))
        .collect()
}

/// Returns where each memory event happened.
fn places(trace: &Trace) -> Vec<Place> {
    /// The open ranges of a thread: the end, the name, whether it is an operator.
    type Open = Vec<(i64, Name, bool)>;
    let takes = trace.names.that(only_takes);
    let mut open: Vec<Open> = vec![Vec::new(); trace.threads.len()];
    let mut ranges = trace.ranges.iter().peekable();
    let place = |event: &Allocated| {
        while let Some(range) = ranges.next_if(|range| range.start_ns <= event.time_ns) {
            let is_operator = match range.kind {
                RangeKind::Operator => true,
                RangeKind::Annotation => false,
                _ => continue,
            };
            let open = &mut open[range.thread.0 as usize];
            while open.pop_if(|top| top.0 <= range.start_ns).is_some() {}
            open.push((range.end_ns(), range.name, is_operator));
        }
        let open = &mut open[event.thread.0 as usize];
        while open.pop_if(|top| top.0 < event.time_ns).is_some() {}
        let near = || open.iter().rev().filter(|top| top.0 >= event.time_ns);
        let range = near().take(64).find(|top| !top.2).map(|top| top.1);
        let operators = || near().take(NEAR).filter(|top| top.2).map(|top| top.1);
        let does = operators().find(|name| !takes[name.0 as usize]);
        (range, does.or_else(|| operators().next()))
    };
    trace.memory.iter().map(place).collect()
}

/// Returns whether an operator only allocates memory for another one.
fn only_takes(name: &str) -> bool {
    let Some(name) = name.strip_prefix("aten::") else {
        return false;
    };
    ["empty", "new_empty", "resize"]
        .iter()
        .any(|start| name.starts_with(start))
}
