//! The time of host and devices by the ranges that the program named.
//!
//! Ranges of a thread nest; those of different threads stay separate. At each moment a thread is in one innermost range or in
//! none, and all time is attributed by that:
//!
//! - host time, to the innermost range of its thread,
//! - work of a device, to the innermost range in which its call began,
//! - idle time of a device, by the thread that launches the next work: up to that call to the innermost range of that thread at
//!   each moment, from there on to the range in which the call began.
//!
//! Time in no range, and work without a call, is [`Ranges::outside`]. So sums are exact: the total of a range is its own time
//! plus that of the ranges in it, and all ranges with the time outside are all work and all idle time of the devices. Of two
//! ranges of a thread that overlap without nesting, the later one has the overlap, and the earlier one ends where the later
//! begins.

use std::collections::HashMap;

use serde::Serialize;

use super::devices::DeviceTime;
use super::links::Links;
use super::spans::add;
use crate::model::{Name, Names, RangeKind, ThreadIndex, Trace};

/// The maximum number of places that are distinguished; deeper ranges count for the range around them.
const MOST_NODES: usize = 1 << 16;

/// All ranges of one name at one place: inside the same ranges of the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name; meaningless for a step of the profiler's schedule.
    pub name: Name,
    /// Whether it represents all steps of the profiler's schedule.
    pub is_step: bool,
    /// The thread of the ranges.
    pub thread: ThreadIndex,
    /// The place around it, which comes before it in the list.
    pub parent: Option<u32>,
    /// Number of places around it.
    pub depth: u32,
    /// Number of ranges.
    pub calls: u64,
    /// Its time, including the ranges in it.
    pub total: Shares,
    /// Its time without the ranges in it.
    pub own: Shares,
}

/// Times that are attributed to ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// Time that the host spent in it.
    pub host_ns: u64,
    /// Total device time of the work launched in it.
    pub device_ns: u64,
    /// Number of those operations.
    pub device_ops: u64,
    /// Idle time of devices attributed to it.
    pub idle_ns: u64,
}

impl Shares {
    fn add(&mut self, other: &Shares) {
        self.host_ns = self.host_ns.saturating_add(other.host_ns);
        self.device_ns = self.device_ns.saturating_add(other.device_ns);
        self.device_ops = self.device_ops.saturating_add(other.device_ops);
        self.idle_ns = self.idle_ns.saturating_add(other.idle_ns);
    }
}

/// The ranges of a trace.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// The places, each after the one around it.
    pub nodes: Vec<Node>,
    /// Time that belongs to no range.
    pub outside: Shares,
}

/// No range.
const NONE: u32 = u32::MAX;

/// The innermost range of a thread over time.
#[derive(Default)]
struct Line {
    points: Vec<(i64, u32)>,
    open: Vec<(u32, i64)>,
    /// Number of idle spans that cover each piece between two points completely, stored as differences from the previous piece.
    cover: Vec<i32>,
}

impl Ranges {
    /// Returns the ranges of a trace, with the work and the idle time of its devices.
    pub fn of(trace: &Trace, links: &Links, devices: &[DeviceTime]) -> Ranges {
        let mut ranges = Ranges::default();
        let mut lines = ranges.lines(trace);
        for (at, work) in trace.work.iter().enumerate() {
            let call = links.call_of(at).map(|call| &trace.calls[call]);
            let node = call.and_then(|call| lines.get(&call.thread)?.at(call.start_ns));
            let share = ranges.share(node);
            share.device_ns = share.device_ns.saturating_add(work.duration_ns);
            share.device_ops += 1;
        }
        ranges.idle(trace, links, devices, &mut lines);
        for line in lines.values() {
            let mut covered = 0i64;
            for (at, (start, node)) in line.points.iter().enumerate() {
                covered += i64::from(line.cover[at]);
                let Some(next) = line.points.get(at + 1) else {
                    continue;
                };
                let length_ns = start.abs_diff(next.0);
                let node = Some(*node).filter(|node| *node != NONE);
                let idle_ns = length_ns.saturating_mul(covered.max(0) as u64);
                let share = ranges.share(node);
                share.idle_ns = share.idle_ns.saturating_add(idle_ns);
                if node.is_some() {
                    share.host_ns = share.host_ns.saturating_add(length_ns);
                }
            }
        }
        for at in (0..ranges.nodes.len()).rev() {
            let own = ranges.nodes[at].own;
            ranges.nodes[at].total.add(&own);
            let total = ranges.nodes[at].total;
            if let Some(parent) = ranges.nodes[at].parent {
                ranges.nodes[parent as usize].total.add(&total);
            }
        }
        ranges
    }

    /// Returns, for each thread, its innermost range over time.
    fn lines(&mut self, trace: &Trace) -> HashMap<ThreadIndex, Line> {
        let mut lines: HashMap<ThreadIndex, Line> = HashMap::new();
        let mut places: HashMap<(ThreadIndex, u32, bool, Name), u32> = HashMap::new();
        for range in &trace.ranges {
            let is_step = range.kind == RangeKind::Step;
            if !is_step && range.kind != RangeKind::Annotation {
                continue;
            }
            let line = lines.entry(range.thread).or_default();
            line.until(range.start_ns);
            while line.open.pop_if(|top| top.1 < range.end_ns()).is_some() {}
            let outer = line.open.last().map_or(NONE, |top| top.0);
            let name = if is_step { Names::OTHER } else { range.name };
            let is_full = self.nodes.len() >= MOST_NODES;
            let place = (range.thread, outer, is_step, name);
            let node = match places.get(&place) {
                Some(node) => *node,
                None if is_full => outer,
                None => {
                    let node = self.nodes.len() as u32;
                    let parent = Some(outer).filter(|outer| *outer != NONE);
                    let depth = parent.map_or(0, |at| self.nodes[at as usize].depth + 1);
                    self.nodes.push(Node {
                        name,
                        is_step,
                        thread: range.thread,
                        parent,
                        depth,
                        calls: 0,
                        total: Shares::default(),
                        own: Shares::default(),
                    });
                    places.insert(place, node);
                    node
                }
            };
            if node != outer {
                self.nodes[node as usize].calls += 1;
            }
            line.points.push((range.start_ns, node));
            line.open.push((node, range.end_ns()));
        }
        for line in lines.values_mut() {
            line.until(i64::MAX);
            line.cover = vec![0; line.points.len()];
        }
        lines
    }

    /// Attributes the idle time of the devices.
    fn idle(
        &mut self,
        trace: &Trace,
        links: &Links,
        devices: &[DeviceTime],
        lines: &mut HashMap<ThreadIndex, Line>,
    ) {
        let gaps = devices.iter().map(|device| {
            let gaps: Vec<(i64, i64)> = device.busy.gaps().collect();
            ((device.process, device.device), gaps.into_iter().peekable())
        });
        let mut gaps: HashMap<_, _> = gaps.collect();
        for (at, work) in trace.work.iter().enumerate() {
            let stream = &trace.streams[work.stream.0 as usize];
            let Some(gaps) = gaps.get_mut(&(stream.process, stream.device)) else {
                continue;
            };
            // The first work after a gap ends it.
            let Some((start, end)) = gaps.next_if(|gap| gap.1 <= work.start_ns) else {
                continue;
            };
            let call = links.call_of(at).map(|call| &trace.calls[call]);
            let line = call.and_then(|call| Some((call.start_ns, lines.get_mut(&call.thread)?)));
            let Some((asked, line)) = line else {
                self.outside.idle_ns = self.outside.idle_ns.saturating_add(start.abs_diff(end));
                continue;
            };
            let late = asked.clamp(start, end);
            let mut give = |node: Option<u32>, ns: u64| {
                add(&mut self.share(node).idle_ns, ns);
            };
            give(line.at(asked), late.abs_diff(end));
            line.cover(start, late, &mut give);
        }
        for (_, gaps) in gaps {
            let left: u64 = gaps.fold(0, |sum, gap| sum.saturating_add(gap.0.abs_diff(gap.1)));
            self.outside.idle_ns = self.outside.idle_ns.saturating_add(left);
        }
    }

    fn share(&mut self, node: Option<u32>) -> &mut Shares {
        match node.and_then(|node| self.nodes.get_mut(node as usize)) {
            Some(node) => &mut node.own,
            None => &mut self.outside,
        }
    }
}

impl Line {
    /// Closes the ranges that end up to a time.
    fn until(&mut self, time_ns: i64) {
        while let Some((_, end)) = self.open.pop_if(|top| top.1 <= time_ns) {
            let outer = self.open.last().map_or(NONE, |top| top.0);
            self.points.push((end, outer));
        }
    }

    /// Returns the piece that contains a time.
    fn piece(&self, time_ns: i64) -> Option<usize> {
        let after = self.points.partition_point(|point| point.0 <= time_ns);
        after.checked_sub(1)
    }

    /// Returns the innermost range at a time.
    fn at(&self, time_ns: i64) -> Option<u32> {
        let node = self.points[self.piece(time_ns)?].1;
        Some(node).filter(|node| *node != NONE)
    }

    /// Attributes a span: its ends immediately, and the whole pieces between them when all spans have been counted, so that a
    /// long span costs no more than a short one.
    fn cover(&mut self, start: i64, end: i64, give: &mut impl FnMut(Option<u32>, u64)) {
        if start >= end {
            return;
        }
        let (first, last) = (self.piece(start), self.piece(end));
        if first == last {
            return give(self.at(start), start.abs_diff(end));
        }
        // The end lies in a later piece than the start, so `points[next]` exists.
        let next = first.map_or(0, |first| first + 1);
        let last = last.unwrap_or(next).max(next);
        give(self.at(start), start.abs_diff(self.points[next].0));
        give(self.at(end), self.points[last].0.abs_diff(end));
        self.cover[next] = self.cover[next].saturating_add(1);
        self.cover[last] = self.cover[last].saturating_sub(1);
    }
}
