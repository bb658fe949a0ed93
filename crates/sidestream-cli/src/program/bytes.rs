//! The bytes that two operations both touch, and which those of a race are.

use std::collections::{HashMap, VecDeque};

use sidestream::check::{Findings, Race};
use sidestream::op::{Access, Accesses, BufferId, Op, OpId};

/// What an operation touches: accesses by buffer and mode, of which none meet, in order.
pub struct Areas(Vec<Access>);

/// The bytes of the races of a process. What operations touched is kept for the last ones only.
#[derive(Default)]
pub struct Bytes {
    last: VecDeque<(OpId, Accesses)>,
    /// The number of accesses in `last`.
    kept: usize,
    found: usize,
    /// By the operations of a race and its buffer: some bytes of it.
    of: HashMap<(OpId, OpId, Option<BufferId>), Access>,
}

/// The largest number of accesses that are kept.
const MOST: usize = 1 << 20;
/// What an operation takes, in accesses.
const EACH: usize = 4;
/// The largest number of races of which bytes are named.
const RACES: usize = 1000;

impl Areas {
    /// Returns what accesses touch.
    pub fn of<'a>(accesses: impl IntoIterator<Item = &'a Access>) -> Areas {
        let mut all: Vec<_> = accesses.into_iter().copied().collect();
        all.sort_unstable_by_key(|x| (x.buffer, x.mode as u8, x.start, x.end));
        all.dedup_by(|next, last| {
            let is_same = (next.buffer, next.mode) == (last.buffer, last.mode);
            let meet = is_same && next.start <= last.end;
            if meet {
                last.end = last.end.max(next.end);
            }
            meet
        });
        Areas(all)
    }

    /// Returns some bytes that are a race if nothing orders the two.
    pub fn conflict(&self, other: &Areas) -> Option<Access> {
        let (few, many) = if self.0.len() < other.0.len() {
            (self, other)
        } else {
            (other, self)
        };
        let conflicts = |x: &Access| {
            // Of each mode, the first that ends after it begins.
            (0..4).find_map(|mode| {
                let at = many.0.partition_point(|y| {
                    (y.buffer, y.mode as u8, y.end) <= (x.buffer, mode, x.start)
                });
                let y = many.0.get(at).filter(|y| conflict(x, y))?;
                let (start, end) = (x.start.max(y.start), x.end.min(y.end));
                Some(Access { start, end, ..*x })
            })
        };
        few.0.iter().find_map(conflicts)
    }
}

/// Whether two accesses that nothing orders are a race.
fn conflict(x: &Access, y: &Access) -> bool {
    let meets = x.buffer == y.buffer && x.start < y.end && y.start < x.end;
    meets && x.conflicts_with(y)
}

impl Bytes {
    /// Takes note of an operation that was checked, and of the bytes of its races.
    pub fn note(&mut self, op: &Op, findings: &Findings) {
        let (found, _) = findings.found();
        if std::mem::replace(&mut self.found, found) < found && found <= RACES {
            let areas = Areas::of(&op.accesses);
            let races = findings.report().races;
            for race in races.iter().filter(|race| race.second == op.id) {
                let of = |buffer| (race.first, race.second, buffer);
                let at = self.last.binary_search_by_key(&race.first, |(id, _)| *id);
                let first = at.ok().map(|at| &self.last[at].1);
                let in_it = first.into_iter().flatten();
                let in_it = in_it.filter(|access| Some(access.buffer) == race.buffer);
                let bytes = Areas::of(in_it).conflict(&areas);
                self.of.extend(bytes.map(|bytes| (of(race.buffer), bytes)));
            }
        }
        if op.accesses.is_empty() {
            return;
        }
        self.kept += EACH + op.accesses.len();
        self.last.push_back((op.id, op.accesses.clone()));
        while let Some((_, oldest)) = self.last.front().filter(|_| self.kept > MOST) {
            self.kept -= EACH + oldest.len();
            self.last.pop_front();
        }
    }

    /// Returns the first of some bytes of a race, and the one after the last.
    pub fn of(&self, race: &Race) -> Option<[u64; 2]> {
        let bytes = self.of.get(&(race.first, race.second, race.buffer))?;
        Some([bytes.start, bytes.end])
    }
}
