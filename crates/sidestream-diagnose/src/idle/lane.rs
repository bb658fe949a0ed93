//! The activity of one host thread, in order, as the attribution of idle time needs it.

use std::collections::BTreeMap;

use super::{Because, Inside, LATENCY_NS, OWN_NS};
use crate::measure::{DeviceTime, Held};
use crate::model::{Memory, Name, Names, Range};
use crate::sections::Section;

/// The maximum number of ranges that are remembered between two calls of a thread.
const MOST_RECENT: usize = 256;

/// A span of a thread's own work, with the innermost range around most of it.
pub type Own = (i64, i64, Option<Because>);

/// A span with a name.
pub type Named = (i64, i64, Because);

/// The activity of one thread, in order.
#[derive(Default)]
pub struct Lane {
    /// Number of calls that the thread made.
    pub calls: usize,
    /// Whether the thread runs operators of the backward pass.
    pub is_backward: bool,
    /// Start of the first call, and end of the last one.
    pub began_ns: Option<i64>,
    pub called_ns: Option<i64>,
    /// Ranges that may overlap the time since the last call, each with the part of the step that it is, if any.
    recent: Vec<(i64, i64, Name, Option<Section>)>,
    /// Long operating system calls that may overlap that time.
    system: Vec<(i64, i64, Name)>,
    /// Long spans without any call, with the innermost range around most of each.
    pub own: Vec<Own>,
    /// One-time work, as disjoint spans.
    pub initial: Vec<Named>,
    /// The start of a capture that has not ended.
    pub captures: Option<(i64, Because)>,
    /// Whether a capture of any kind has not ended.
    pub is_capturing: bool,
    /// Waits for data, as disjoint spans.
    pub loading: Vec<Named>,
    /// Calls that blocked the host, as disjoint spans.
    pub held: Vec<(Named, Held)>,
    /// Total time of those calls.
    pub held_ns: u64,
    /// Ranges that may be open, and whether they are operators.
    open: Vec<(i64, Name, bool)>,
    /// The host memory of the last call, if it copied from or to the host.
    pub copied: Option<Memory>,
    /// When the last step of the profiler ended.
    pub step_over_ns: Option<i64>,
}

impl Lane {
    /// Records the start of a call: a long time without any call before it is the thread's own work, or compilation if the call
    /// loads code.
    pub fn act(&mut self, (start, end): (i64, i64), loads_code: bool) {
        if let Some(called) = self.called_ns
            && called < start
            && called.abs_diff(start) >= OWN_NS
        {
            let around = self.innermost(called, start);
            let because = self.in_system((called, start), around).or(around);
            if loads_code {
                let because = because.unwrap_or(Because::of(Names::OTHER));
                apart(&mut self.initial, (called, start, because));
            } else {
                self.own.push((called, start, because))
            }
        }
        self.calls += 1;
        self.began_ns = self.began_ns.or(Some(start));
        self.called_ns = Some(self.called_ns.map_or(end, |called| called.max(end)));
        self.recent.retain(|range| range.1 > start);
        self.system.retain(|call| call.1 > start);
    }

    /// Records a call of the operating system.
    pub fn call_system(&mut self, call: &Range) {
        if self.system.len() >= MOST_RECENT {
            self.system.drain(..MOST_RECENT / 2);
        }
        self.system.push((call.start_ns, call.end_ns(), call.name));
    }

    /// Returns the call of the operating system that makes up most of a span, in the range around it.
    fn in_system(&self, (start, end): (i64, i64), around: Option<Because>) -> Option<Because> {
        let mut sums: BTreeMap<Name, u64> = BTreeMap::new();
        for call in &self.system {
            let shared = call.1.min(end).saturating_sub(call.0.max(start)).max(0);
            *sums.entry(call.2).or_default() += shared as u64;
        }
        let (name, ns) = sums.into_iter().max_by_key(|(_, ns)| *ns)?;
        let mut because = Because::of(name);
        because.inside[2] = around.map(|around| around.name);
        because.inside[1] = around.and_then(|around| around.inside[2]);
        (2 * ns > start.abs_diff(end)).then_some(because)
    }

    /// Returns how much of a span is the thread's own work: neither a wait for data nor one-time work.
    pub fn own_ns_of(&self, (start, end, _): &Own) -> u64 {
        let length = start.abs_diff(*end);
        let loading_ns = within_ns(&self.loading, *start, *end);
        let once_ns = within_ns(&self.initial, *start, *end);
        length.saturating_sub(loading_ns.saturating_add(once_ns))
    }

    /// Records a range that may name the thread's own work.
    pub fn notice(&mut self, range: &Range, part: Option<Section>) {
        if range.duration_ns < OWN_NS / 5 {
            return;
        }
        if self.recent.len() >= MOST_RECENT {
            self.recent.drain(..MOST_RECENT / 2);
        }
        self.recent
            .push((range.start_ns, range.end_ns(), range.name, part));
    }

    /// Returns the innermost range around most of a span, with the part of the step to which it belongs; otherwise the range
    /// around the largest part, unless that is negligible.
    fn innermost(&self, start: i64, end: i64) -> Option<Because> {
        let shared = |range: &(i64, i64, Name, Option<Section>)| {
            range.1.min(end).saturating_sub(range.0.max(start)).max(0) as u64
        };
        // A wait for data is named separately.
        let length = self.own_ns_of(&(start, end, None));
        let around = self
            .recent
            .iter()
            .filter(|range| shared(range) > length / 2);
        let innermost = around.min_by_key(|range| (range.0.abs_diff(range.1), -range.0));
        let most = self.recent.iter().max_by_key(|range| shared(range));
        let most = most.filter(|range| shared(range) > length / 5);
        let mut because = Because::of(innermost.or(most)?.2);
        let around = self.recent.iter().filter(|range| {
            range.3.is_some() && range.2 != because.name && shared(range) > length / 2
        });
        let outermost = around.max_by_key(|range| range.0.abs_diff(range.1));
        because.inside[2] = outermost.map(|range| range.2);
        Some(because)
    }

    /// Returns the ranges that are open at a moment, the innermost first, and whether they are operators.
    pub fn open_at(&self, start: i64) -> impl DoubleEndedIterator<Item = (Name, bool)> {
        // Files may hold ranges that do not nest; the innermost are near the end all the same.
        let open = self.open.iter().rev().take(64);
        open.filter(move |open| open.0 > start)
            .map(|open| (open.1, open.2))
    }

    /// Opens a range; closes those that have ended.
    pub fn enter(&mut self, start: i64, range: (i64, Name, bool)) {
        while self.open.pop_if(|open| open.0 <= start).is_some() {}
        self.open.push(range);
    }

    /// Returns the operators that are open at a moment.
    pub fn inside(&mut self, start: i64) -> Inside {
        while self.open.pop_if(|open| open.0 <= start).is_some() {}
        let mut inside = Inside::default();
        // Files may hold ranges that do not nest; the innermost are near the end all the same.
        let open = self.open.iter().rev().take(64);
        let open = open.filter(|open| open.0 > start);
        let operators = open.clone().filter(|open| open.2).map(|open| open.1);
        for (place, name) in inside.iter_mut().rev().zip(operators) {
            *place = Some(name);
        }
        if inside[2].is_none() {
            inside[2] = open.map(|open| open.1).next();
        }
        inside
    }

    /// Returns the longest of the calls that blocked the thread when the gap began or during it.
    pub fn held_before(&self, start: i64, late: i64) -> Option<(Named, Held)> {
        // A wait that ended just before the gap ended with the device's work: the host needs a moment to notice.
        let noticed = start.saturating_sub(LATENCY_NS as i64);
        let first = self.held.partition_point(|(held, _)| held.0 < late);
        let recent = self.held[..first].iter().rev();
        let recent = recent.take_while(|(held, _)| held.1 > noticed);
        recent
            .max_by_key(|(held, _)| held.1.abs_diff(held.0))
            .copied()
    }

    /// Returns how long the thread was not blocked while the device was in use.
    pub fn own_ns(&self, device: &DeviceTime) -> u64 {
        device.span_ns.saturating_sub(self.held_ns)
    }
}

/// Adds a span to an ordered list, as far as it lies after all spans before it: of two nested spans the outer one remains.
pub fn apart(list: &mut Vec<Named>, (start, end, because): Named) {
    let start = list.last().map_or(start, |last| start.max(last.1));
    if start < end {
        list.push((start, end, because));
    }
}

/// Returns the spans of an ordered, disjoint list that overlap another span.
pub fn overlapping(list: &[Named], start: i64, end: i64) -> impl Iterator<Item = &Named> {
    let first = list.partition_point(|stretch| stretch.1 <= start);
    list[first..]
        .iter()
        .take_while(move |stretch| stretch.0 < end)
}

/// Returns how much of some time the spans of an ordered list cover.
pub fn within_ns(list: &[Named], start: i64, end: i64) -> u64 {
    let inside = overlapping(list, start, end);
    let lengths = inside.map(|named| named.0.max(start).abs_diff(named.1.min(end)));
    lengths.fold(0, u64::saturating_add)
}
