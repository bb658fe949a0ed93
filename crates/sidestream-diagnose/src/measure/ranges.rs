//! The time of host and devices by the ranges that the program named.
//!
//! Ranges of a thread nest; those of different threads stay apart. At each moment a thread is in one innermost range
//! or in none, and all of it is given out by that:
//!
//! - host time, to the innermost range of its thread,
//! - work of a device, to the innermost range in which its call began,
//! - idle time of a device, by the thread that launches what comes next: up to that call to the innermost range of that thread at
//!   each moment, from there on to the one in which the call began.
//!
//! What is in no range, and what has no call, is [`Ranges::outside`]. So sums are exact: a range is what it has by
//! itself and what the ranges in it have, and all of them with what is outside are all work and all idle time of the devices. Of
//! two ranges of a thread that overlap and do not nest, the later one has what both cover, and the earlier one ends where it begins.

use std::collections::HashMap;

use serde::Serialize;

use super::devices::DeviceTime;
use super::links::Links;
use crate::model::{Name, Names, RangeKind, ThreadIndex, Trace};

/// More places than these are not told apart; what lies deeper counts for the range around it.
const MOST_NODES: usize = 1 << 16;

/// All ranges of one name at one place: inside the same ranges of the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name; of a step of the profiler's schedule it says nothing.
    pub name: Name,
    /// Whether it stands for all steps of the profiler's schedule.
    pub is_step: bool,
    /// Whose they are.
    pub thread: ThreadIndex,
    /// The place around it, which comes before it in the list.
    pub parent: Option<u32>,
    /// How many are around it.
    pub depth: u32,
    /// How many ranges.
    pub calls: u64,
    /// What it has in all, and by itself.
    pub total: Shares,
    /// What it has without the ranges in it.
    pub own: Shares,
}

/// Times that are given out to ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// How long the host was in it.
    pub host_ns: u64,
    /// How long what was launched in it took on devices, one after the other.
    pub device_ns: u64,
    /// How much work that is.
    pub device_ops: u64,
    /// How long devices did nothing for it.
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
    /// The places, each behind the one around it.
    pub nodes: Vec<Node>,
    /// What belongs to none.
    pub outside: Shares,
}

/// No range.
const NONE: u32 = u32::MAX;

/// Which range is the innermost one of a thread, from when on.
#[derive(Default)]
struct Line {
    points: Vec<(i64, u32)>,
    open: Vec<(u32, i64)>,
    /// How many idle stretches cover each of these pieces whole, as differences.
    cover: Vec<i32>,
}

impl Ranges {
    /// The ranges of a trace, with what its devices did and did not do.
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

    /// Which range is the innermost one of each thread at each time.
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

    /// Gives out what the devices did not do.
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
            // The first work behind a gap ends it.
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
                let share = self.share(node);
                share.idle_ns = share.idle_ns.saturating_add(ns);
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
    /// What ends up to a time is over.
    fn until(&mut self, time_ns: i64) {
        while let Some((_, end)) = self.open.pop_if(|top| top.1 <= time_ns) {
            let outer = self.open.last().map_or(NONE, |top| top.0);
            self.points.push((end, outer));
        }
    }

    /// The piece that a time is in.
    fn piece(&self, time_ns: i64) -> Option<usize> {
        let after = self.points.partition_point(|point| point.0 <= time_ns);
        after.checked_sub(1)
    }

    /// The innermost range at a time.
    fn at(&self, time_ns: i64) -> Option<u32> {
        let node = self.points[self.piece(time_ns)?].1;
        Some(node).filter(|node| *node != NONE)
    }

    /// Gives out a stretch: its ends at once, and the whole pieces between them when all are counted, so that long
    /// stretches cost no more than short ones.
    fn cover(&mut self, start: i64, end: i64, give: &mut impl FnMut(Option<u32>, u64)) {
        if start >= end {
            return;
        }
        let (first, last) = (self.piece(start), self.piece(end));
        if first == last {
            return give(self.at(start), start.abs_diff(end));
        }
        // The first piece has to be there for the two to differ.
        let next = first.map_or(0, |first| first + 1);
        let last = last.unwrap_or(next).max(next);
        give(self.at(start), start.abs_diff(self.points[next].0));
        give(self.at(end), self.points[last].0.abs_diff(end));
        self.cover[next] = self.cover[next].saturating_add(1);
        self.cover[last] = self.cover[last].saturating_sub(1);
    }
}
