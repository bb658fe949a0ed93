//! Kernels whose accesses were heard, to the byte: then nothing is guessed.
//!
//! What was not heard counts as not touched, so that an error is one, and is reported as missing.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};
use sidestream::check::counted;
use sidestream::log::limits;
use sidestream::op::{Accesses, Kind, Mode, OpId, StreamId};

use super::awaited::{Awaited, Launched};
use super::maps::{self, Maps};
use super::translate::{Hears, Now, Process};

/// Bytes of one class: the class, the first address, the address after the last byte.
pub type Range = (u8, u64, u64);

/// The class of bytes that may be written. Below are those that are read, written, and changed atomically.
pub const MAY_WRITE: u8 = 3;
/// Added to a class: before the kernel waited for those before it.
pub const EARLY: u8 = 4;

/// The largest number of operations that a launch becomes.
const PARTS: usize = 64;

/// What is known of the bytes that kernels touch.
#[derive(Default)]
pub struct Exact {
    /// Whether they are heard.
    pub is_on: bool,
    /// What is held back until they are.
    pub awaited: Awaited,
    /// By thread: what its next call launches.
    next: HashMap<u32, Launch>,
    /// What the present call launches.
    now: Launch,
    /// Tensor maps.
    pub maps: Maps,
    /// What was not heard.
    pub unseen: Unseen,
}

/// What a call launches.
#[derive(Default)]
struct Launch {
    kernels: Vec<Launched>,
    /// The words of what may be tensor maps among the parameters.
    maps: Vec<u64>,
}

/// Why a launch is not known to the byte.
#[derive(Clone, Copy)]
pub enum Why {
    /// No number was given to it.
    NotWatched,
    /// Its ranges did not come, or not in time.
    NotInTime,
    /// Some of its ranges were lost.
    TooMuch,
    /// It copies by a tensor map that is not known, or too many boxes.
    Map,
    /// It stores tensors, by a map that is not among its parameters.
    Stores,
}

/// How much is not known to the byte of what kernels touched.
#[derive(Default)]
pub struct Unseen {
    launches: u64,
    /// By reason.
    unknown: [u64; 5],
    /// Launches of which the bytes are those of earlier ones.
    pub earlier: u64,
    /// Bytes outside all memory.
    pub outside: u64,
    left_out: u64,
}

impl Unseen {
    /// Takes note of launches, and why they are not known.
    pub fn count(&mut self, launches: u64, why: Option<Why>) {
        self.launches += launches;
        if let Some(why) = why {
            self.unknown[why as usize] += launches;
        }
    }

    /// Leaves as many accesses as this many operations may have, the largest.
    pub fn keep(&mut self, accesses: &mut Accesses, operations: usize) {
        let most = operations * limits::ACCESSES as usize;
        if accesses.len() > most {
            accesses.sort_unstable_by_key(|access| Reverse(access.len_bytes()));
            let rest = accesses.drain(most..);
            let bytes = rest.fold(0, |all: u64, access| all.saturating_add(access.len_bytes()));
            self.left_out = self.left_out.saturating_add(bytes);
        }
    }

    /// Returns all of it, for programs.
    pub fn json(&self) -> Value {
        let [not_watched, not_in_time, too_much, map, stores] = self.unknown;
        json!({
            "launches": self.launches,
            "not_watched": not_watched,
            "not_in_time": not_in_time,
            "incomplete": too_much,
            "unknown_maps": map,
            "tensor_stores": stores,
            "as_earlier": self.earlier,
            "bytes_outside": self.outside,
            "bytes_left_out": self.left_out,
        })
    }

    /// Returns what is not known, as lines; none if all is.
    pub fn text(&self) -> String {
        const WHY: [&str; 5] = [
            "not watched (not named by --only, or of a module that launches kernels from the device)",
            "not heard before the end, or too late",
            "with more accesses than there is room for",
            "with copies by a tensor map that is not known",
            "with tensor stores, which NVIDIA's library does not tell",
        ];
        let (unknown, mut out) = (self.unknown.iter().sum::<u64>(), String::new());
        if unknown > 0 {
            let each = self.unknown.iter().zip(WHY).filter(|each| *each.0 > 0);
            let each: Vec<_> = each.map(|(count, why)| format!("{count} {why}")).collect();
            let (all, each) = (counted(self.launches, "kernel"), each.join(", "));
            out += &format!("\n  exact: {unknown} of {all} were not seen to the byte: {each}\n");
        }
        if self.earlier > 0 {
            let (earlier, all) = (self.earlier, counted(self.launches, "kernel"));
            out += &format!(
                "\n  exact: {earlier} of {all} were not watched: they are taken to touch what earlier launches of the same kernel \
                 touched, relative to the addresses among their parameters; where that depends on data, a race may be missed\n"
            );
        }
        for (bytes, what) in [
            (self.outside, "lie outside all memory that calls made known"),
            (
                self.left_out,
                "were not compared: their launches touch too many ranges",
            ),
        ] {
            if bytes > 0 {
                out += &format!("\n  exact: {bytes} bytes that kernels touched {what}\n");
            }
        }
        out
    }
}

impl Exact {
    /// Takes what the next call of a thread launches.
    pub fn launches(&mut self, record: &[u64]) {
        if let Some((&thread, pairs)) = record.split_first() {
            let launched = self.awaited.launched(pairs);
            let next = self.next.entry(thread as u32).or_default();
            next.kernels.extend(launched);
        }
    }

    /// Takes the tensor maps among the parameters of what the next call of a thread launches.
    pub fn maps_of_launch(&mut self, record: &[u64]) {
        if let Some((&thread, maps)) = record.split_first() {
            self.next.entry(thread as u32).or_default().maps = maps.to_vec();
        }
    }

    /// A call of a thread begins.
    pub fn call(&mut self, thread: u32) {
        if self.is_on {
            self.now = self.next.remove(&thread).unwrap_or_default();
        }
    }

    /// Appends what a launch touched, and by which of the maps among its parameters it may store. Returns why that is not all.
    fn ranges(
        &mut self,
        launched: Launched,
        maps: &[u64],
        into: &mut Vec<Range>,
        stores: &mut Vec<Range>,
    ) -> Option<Why> {
        let Some(touched) = launched.touched else {
            return Some(Why::NotInTime);
        };
        self.unseen.earlier += u64::from(touched.is_earlier);
        let from = into.len();
        let (pairs, _) = touched.ranges.as_chunks();
        let each = pairs.iter().map(|&[first, end]| {
            let class = (first >> 60) as u8 & (EARLY | 3);
            (class, first & ((1 << 60) - 1), end)
        });
        into.extend(each.filter(|(_, start, end)| start < end));
        let are_known = self.maps.boxes(&touched.boxes, into);
        // If boxes are missing, a map may be one of theirs.
        let is_all = touched.has_ended && !touched.is_incomplete;
        let are_stores_unknown = touched.stores_tensors
            && !(is_all && touched.tells_loads && maps::stores(maps, &touched.boxes, stores));
        let mut own = into.split_off(from);
        merge(&mut own);
        into.append(&mut own);
        if !touched.has_ended {
            Some(Why::NotInTime)
        } else if touched.is_incomplete {
            Some(Why::TooMuch)
        } else if !are_known {
            Some(Why::Map)
        } else {
            are_stores_unknown.then_some(Why::Stores)
        }
    }

    fn launched(&mut self) -> Launch {
        std::mem::take(&mut self.now)
    }
}

/// Makes one of ranges of one class that meet, and sorts them.
fn merge(ranges: &mut Vec<Range>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let meet = next.0 == last.0 && next.1 <= last.2;
        if meet {
            last.2 = last.2.max(next.2);
        }
        meet
    });
}

fn mode_of(class: u8) -> Mode {
    match class & 3 {
        0 => Mode::Read,
        1 => Mode::Write,
        2 => Mode::Atomic,
        _ => Mode::MayWrite,
    }
}

impl<T: Hears> Process<T> {
    /// A launch in a stream.
    pub(super) fn launch_exactly(&mut self, now: &Now<'_>, stream: StreamId, is_dependent: bool) {
        let (launch, kernel) = (self.exact.launched(), Kind::kernel(stream));
        let launched = launch.kernels;
        if self.graphs.is_captured(kernel) {
            self.graphs.captured = launched.first().map_or(0, |launched| launched.node);
            return self.op(now, kernel, &[]);
        }
        let mut why = launched.is_empty().then_some(Why::NotWatched);
        let (mut ranges, mut stores) = (Vec::new(), Vec::new());
        for one in launched {
            let missing = self
                .exact
                .ranges(one, &launch.maps, &mut ranges, &mut stores);
            why = why.or(missing);
        }
        let is_early = |range: &Range| is_dependent && range.0 & EARLY != 0;
        let (early, rest): (Vec<_>, Vec<_>) = ranges.into_iter().partition(is_early);
        let has_rest = early.is_empty() || !rest.is_empty();
        if !early.is_empty() {
            let kind = Kind::DependentKernel {
                stream,
                may_wait: false,
            };
            self.kernel_touches(now, kind, early);
        }
        // First, since a dependent kernel may come before the end of the last one only.
        let is_told = stores.is_empty() || self.may_store(now, kernel, stores);
        if has_rest {
            self.kernel_touches(now, kernel, rest);
        }
        let why = why.or((!is_told).then_some(Why::Stores));
        self.exact.unseen.count(1, why);
    }

    /// A kernel that stores in some of these bytes, an operation of its own: all of its races are warnings. Returns whether
    /// that can be told.
    fn may_store(&mut self, now: &Now<'_>, kernel: Kind, ranges: Vec<Range>) -> bool {
        let is_told = self.told.doubts(OpId(self.ops));
        if is_told {
            let (mut accesses, _) = self.placed(ranges);
            self.exact.unseen.keep(&mut accesses, 1);
            self.op(now, kernel, &accesses);
        }
        is_told
    }

    /// A kernel that touches more than one operation may name is several, one after the other in its stream. Those before the
    /// wait of a dependent launch would not be: the second is early beside the first only.
    fn kernel_touches(&mut self, now: &Now<'_>, kind: Kind, ranges: Vec<Range>) {
        let (mut accesses, outside) = self.placed(ranges);
        let unseen = &mut self.exact.unseen;
        unseen.outside = unseen.outside.saturating_add(outside);
        let is_early = matches!(kind, Kind::DependentKernel { .. });
        unseen.keep(&mut accesses, if is_early { 1 } else { PARTS });
        let (first, rest) = accesses.split_at(accesses.len().min(limits::ACCESSES as usize));
        self.op(now, kind, first);
        for part in rest.chunks(limits::ACCESSES as usize) {
            self.op(now, kind, part);
        }
        self.tells(&accesses);
    }

    /// Returns what the kernels of a graph's launch touch, and by the handle of their node; and how many they are.
    pub(super) fn nodes_touch(&mut self) -> (Vec<Range>, HashMap<u64, Vec<Range>>, u64) {
        let (mut all, mut of_nodes) = (Vec::new(), HashMap::<u64, Vec<Range>>::new());
        let launched = self.exact.launched().kernels;
        let count = launched.len() as u64;
        for one in launched {
            let (node, from) = (one.node, all.len());
            let why = self.exact.ranges(one, &[], &mut all, &mut Vec::new());
            self.exact.unseen.count(1, why);
            of_nodes.entry(node).or_default().extend(&all[from..]);
        }
        (all, of_nodes, count)
    }

    /// Returns accesses to ranges in the memory that contains them, and the number of bytes outside all memory.
    pub(super) fn placed(&mut self, mut ranges: Vec<Range>) -> (Accesses, u64) {
        ranges.iter_mut().for_each(|range| range.0 &= 3);
        merge(&mut ranges);
        let (mut accesses, mut outside) = (Accesses::new(), 0_u64);
        for (class, start, end) in ranges {
            let mut at = start;
            while at < end {
                let next = if let Some(range) = self.memory.at(at) {
                    accesses.push(range.access(at, end - at, mode_of(class)));
                    range.end.min(end)
                } else {
                    let next = self.memory.next_after(at).unwrap_or(end).min(end);
                    outside = outside.saturating_add(next - at);
                    next
                };
                at = next;
            }
        }
        (accesses, outside)
    }
}
