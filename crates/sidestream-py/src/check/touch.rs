//! The bytes that a call touches: converted to accesses, compared, and merged.

use std::collections::{HashSet, VecDeque};

use sidestream::op::{Access, Accesses, BufferId, Mode, OpId};

use super::tensor::Rows;

/// A byte range that an operator touches.
#[derive(Clone, Debug)]
pub struct Touch {
    /// The address of the first byte.
    pub ptr: u64,
    /// The address after the last byte.
    pub end: u64,
    /// The device; below zero for host memory.
    pub device: i32,
    /// Whether the bytes are written.
    pub write: bool,
    /// The rows, if not all bytes of the range are touched.
    pub rows: Option<Box<Rows>>,
    /// The number of the argument's name, if only some of the bytes may be touched.
    pub may: Option<u32>,
    /// Whether at least one of the bytes certainly is.
    pub any: bool,
}

impl Touch {
    /// All bytes from one address to another.
    pub fn of(ptr: u64, end: u64, device: i32, write: bool) -> Touch {
        Touch {
            ptr,
            end,
            device,
            write,
            rows: None,
            may: None,
            any: true,
        }
    }

    /// Whether all bytes of another touch are certainly among these.
    pub fn covers(&self, other: &Touch) -> bool {
        let is_whole = self.may.is_none() && self.rows.is_none();
        is_whole && self.ptr <= other.ptr && other.end <= self.end
    }

    pub fn mode(&self) -> Mode {
        if self.write { Mode::Write } else { Mode::Read }
    }
}

/// Whether two accesses overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Real {
    #[default]
    No,
    Yes,
    /// They may: the argument, and its operation.
    May(Option<(u32, OpId)>),
}

/// The number of operations whose touched bytes are remembered.
const NOTES: usize = 1 << 15;

/// What the last operations touched, for accesses that are less exact than their touches.
#[derive(Default)]
pub struct Notes {
    all: VecDeque<(OpId, Vec<Touch>)>,
    /// Buffers for which the span of a tensor with gaps was reported.
    spanned: HashSet<BufferId>,
    /// Buffers for which the reported range includes bytes that an operator may touch, but not certainly.
    unsure: HashSet<BufferId>,
}

impl Notes {
    /// Adds a touch to the accesses of an operation: row by row if there are few, otherwise the span.
    pub fn add(&mut self, accesses: &mut Accesses, touch: &Touch, buffer: BufferId, base: u64) {
        let mode = touch.mode();
        let mut access = |start: u64, end: u64| {
            accesses.push(Access {
                buffer,
                start: start.saturating_sub(base),
                end: end.saturating_sub(base),
                mode,
            });
        };
        match &touch.rows {
            Some(rows) if rows.count() <= FEW_ROWS => rows.each(touch.ptr, access),
            rows => {
                access(touch.ptr, touch.end);
                if rows.is_some() {
                    self.spanned.insert(buffer);
                }
            }
        }
        if touch.may.is_some() {
            self.unsure.insert(buffer);
        }
    }

    /// Remembers what an operation touches.
    pub fn note(&mut self, op: OpId, touches: &[Touch]) {
        let oldest = (self.all.len() == NOTES).then(|| self.all.pop_front());
        let mut room = oldest.flatten().unwrap_or_default().1;
        room.clear();
        room.extend_from_slice(touches);
        self.all.push_back((op, room));
    }

    /// Whether a race that the checker reports is real. For tensors with many gaps, it received the span; such a race
    /// counts only if the touched bytes are known to overlap. If an argument may touch its bytes, but not certainly,
    /// they need not overlap.
    pub fn is_real(&self, first: OpId, second: OpId, buffer: Option<BufferId>) -> Real {
        let is_in = |set: &HashSet<BufferId>| buffer.is_some_and(|buffer| set.contains(&buffer));
        let unsure = is_in(&self.unsure);
        if !unsure && !is_in(&self.spanned) {
            return Real::Yes;
        }
        let find = |op| self.all.iter().rev().find(|(at, _)| *at == op);
        let (Some((_, first_touches)), Some((_, second_touches))) = (find(first), find(second))
        else {
            return if unsure { Real::May(None) } else { Real::No };
        };
        let mut real = Real::No;
        for one in first_touches {
            for two in second_touches.iter().filter(|two| two.write || one.write) {
                // A part that is not empty is a part of what the other touches in full.
                if (one.any && two.covers(one)) || (two.any && one.covers(two)) {
                    return Real::Yes;
                }
                if meet(one, two) == Some(true) {
                    let of_second = two.may.map(|name| (name, second));
                    match of_second.or(one.may.map(|name| (name, first))) {
                        Some(may) => real = Real::May(Some(may)),
                        None => return Real::Yes,
                    }
                }
            }
        }
        real
    }
}

/// The maximum number of rows that are reported one by one.
const FEW_ROWS: u64 = 16;
/// The maximum number of rows that are compared when a race is suspected.
const MANY_ROWS: u64 = 1 << 20;

/// Whether two touches have a common byte; `None` if that would take too long to determine.
fn meet(a: &Touch, b: &Touch) -> Option<bool> {
    if a.end <= b.ptr || b.end <= a.ptr {
        return Some(false);
    }
    let (a, b) = (ranges(a)?, ranges(b)?);
    let (mut i, mut k) = (0, 0);
    while i < a.len() && k < b.len() {
        if a[i].1 <= b[k].0 {
            i += 1;
        } else if b[k].1 <= a[i].0 {
            k += 1;
        } else {
            return Some(true);
        }
    }
    Some(false)
}

fn ranges(touch: &Touch) -> Option<Vec<(u64, u64)>> {
    let Some(rows) = &touch.rows else {
        return Some(vec![(touch.ptr, touch.end)]);
    };
    if rows.count() > MANY_ROWS {
        return None;
    }
    let mut all = Vec::new();
    rows.each(touch.ptr, |start, end| all.push((start, end)));
    all.sort_unstable();
    Some(all)
}

/// Merges overlapping touches of the same mode, so that the size of a graph launch does not grow with the graph.
/// Tensors with gaps are not merged.
pub fn coalesce(touches: &mut Vec<Touch>) {
    touches.sort_by_key(|touch| (touch.write, touch.ptr));
    touches.dedup_by(|next, kept| {
        let dense = next.rows.is_none() && kept.rows.is_none();
        let same = dense && next.write == kept.write && next.ptr < kept.end;
        if same {
            kept.end = kept.end.max(next.end);
        }
        same
    });
}
