//! Segments: the units in which memory comes from the driver and returns to it.

use std::collections::BTreeMap;

use super::{NONE, Record, Table, Tenancy};
use crate::alloc::{On, State, Uses};
use crate::op::StreamId;

/// A segment in which nothing is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::alloc) struct Idle {
    pub address: u64,
    pub bytes: u64,
    /// The size of the hole that contains it.
    pub hole_bytes: u64,
}

/// The end of an address range.
#[derive(Clone, Copy, Debug)]
pub(in crate::alloc) struct End {
    pub address: u64,
    /// The free bytes before it that can be used without a wait.
    pub tail_bytes: u64,
    /// The distance to the next range, in bytes.
    pub room_bytes: u64,
    /// The free bytes at the start of that range that can be used without a wait.
    pub head_bytes: u64,
}

impl<U: Uses> Table<U> {
    /// Adds free memory.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, uses: U) {
        self.segments.insert(address, bytes);
        let new = self.new_record(Record {
            address,
            bytes,
            before: NONE,
            behind: NONE,
            other: NONE,
            tenancy: Tenancy::Stacked,
            on: On::NoStream,
            answer: (0, false),
            uses,
        });
        let neighbours = |ends: &mut BTreeMap<u64, u32>, at: u64, joins: bool| {
            let joined = joins.then(|| ends.remove(&at)).flatten();
            joined.unwrap_or(NONE)
        };
        let before = neighbours(&mut self.lasts, address, self.joins);
        let behind = neighbours(&mut self.firsts, address + bytes, self.joins);
        self.link(new, behind);
        if before == NONE {
            self.firsts.insert(address, new);
        } else {
            self.link(before, new);
        }
        self.settle(new);
    }

    /// Returns the segments in which nothing is allocated.
    pub(crate) fn idle(&self) -> Vec<Idle> {
        let idle = self.holes.iter().flat_map(|&(bytes, address, _)| {
            segments_inside(&self.segments, address, address + bytes, bytes)
        });
        idle.collect()
    }

    /// Returns the segments in which nothing is allocated and all uses are complete.
    pub(crate) fn idle_over(
        &mut self,
        state: &mut impl FnMut(&U) -> State,
        over_bytes: &mut u64,
    ) -> Vec<Idle> {
        let mut idle = Vec::new();
        for &(hole_bytes, address, hole) in &self.holes {
            let end = address + hole_bytes;
            let mut start = address;
            let mut at = hole;
            while start < end {
                let record = &mut self.records[at as usize];
                if !record.is_complete(state, over_bytes) {
                    let upto = record.address;
                    idle.extend(segments_inside(&self.segments, start, upto, hole_bytes));
                    start = record.end();
                } else if record.end() == end {
                    idle.extend(segments_inside(&self.segments, start, end, hole_bytes));
                    break;
                }
                at = record.behind;
            }
        }
        idle
    }

    /// Removes an idle segment, and returns its uses.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64, over_bytes: &mut u64) -> U {
        self.segments.remove(&address);
        let end = address + bytes;
        let mut first = self.record_at(address);
        let mut hole = first;
        while self.is_free(self.at(hole).before) {
            hole = self.at(hole).before;
        }
        let mut hole_last = self.at(hole).other;
        self.unlist(hole);
        if let Some(back) = self.cut(first, address) {
            hole_last = if hole_last == first { back } else { hole_last };
            first = back;
        }
        let last = self.record_at(end - 1);
        if let Some(back) = self.cut(last, end) {
            hole_last = if hole_last == last { back } else { hole_last };
        }
        let (before, behind) = (self.at(first).before, self.at(last).behind);
        while self.at(first).end() < end {
            self.absorb(first, over_bytes);
        }
        let gone = self.at_mut(first);
        let uses = std::mem::take(&mut gone.uses);
        if gone.on == On::NoStream {
            *over_bytes -= bytes;
        }
        self.spare.push(first);
        if before == NONE {
            self.firsts.remove(&address);
        } else {
            self.link(before, NONE);
        }
        if behind == NONE {
            self.lasts.remove(&end);
        } else {
            self.at_mut(behind).before = NONE;
            self.firsts.insert(end, behind);
        }
        if hole != first {
            self.list(hole, before);
        }
        if hole_last != last {
            self.list(behind, hole_last);
        }
        uses
    }

    /// Returns the record that contains this address.
    fn record_at(&self, address: u64) -> u32 {
        let range = self.firsts.range(..=address).next_back();
        let mut at = *range.expect("the address was added").1;
        while self.at(at).end() <= address {
            at = self.at(at).behind;
        }
        at
    }

    /// Returns the ends of address ranges, with the free bytes before them that can be used without a wait.
    pub(crate) fn ends(
        &mut self,
        home: Option<StreamId>,
        state: &mut impl FnMut(&U) -> State,
        over_bytes: &mut u64,
    ) -> Vec<End> {
        let turn = self.turn;
        let records = &mut self.records;
        let mut ready_bytes = |mut at: u32, next: fn(&Record<U>) -> u32| {
            let mut bytes = 0;
            while at != NONE {
                let record = &mut records[at as usize];
                let is_free = record.tenancy == Tenancy::Free;
                if !is_free || !record.is_ready(home, turn, state, over_bytes) {
                    break;
                }
                bytes += record.bytes;
                at = next(record);
            }
            bytes
        };
        let ends = self.lasts.iter().map(|(&address, &last)| {
            let next = self.firsts.range(address..).next();
            let room_bytes = next.map_or(u64::MAX, |(&start, _)| start) - address;
            End {
                address,
                tail_bytes: ready_bytes(last, |record| record.before),
                room_bytes,
                head_bytes: next.map_or(0, |(_, &first)| ready_bytes(first, |r| r.behind)),
            }
        });
        ends.collect()
    }

    /// Returns the largest free size at the end of a range that is not in an idle segment.
    pub(crate) fn busy_tail_bytes(&self) -> u64 {
        let tails = self.lasts.iter().map(|(&end, &last)| {
            if !self.is_free(last) {
                return 0;
            }
            let start = self.at(self.at(last).other).address;
            let mut inside = self.segments.range(start..end);
            inside.next().map_or(end, |(&idle, _)| idle) - start
        });
        tails.max().unwrap_or(0)
    }

    /// Notes which free records have only complete uses; returns the bytes of those newly noted.
    pub(crate) fn look(&mut self, is_complete: &mut impl FnMut(&U) -> bool) -> u64 {
        let mut bytes = 0;
        for &(_, _, hole) in &self.holes {
            let last = self.records[hole as usize].other;
            let mut at = hole;
            loop {
                let record = &mut self.records[at as usize];
                if record.on != On::NoStream && is_complete(&record.uses) {
                    record.on = On::NoStream;
                    bytes += record.bytes;
                }
                if at == last {
                    break;
                }
                at = record.behind;
            }
        }
        bytes
    }
}

fn segments_inside(
    segments: &BTreeMap<u64, u64>,
    start: u64,
    end: u64,
    hole_bytes: u64,
) -> impl Iterator<Item = Idle> {
    let inside = segments.range(start..end);
    let idle = inside.map(move |(&address, &bytes)| Idle {
        address,
        bytes,
        hole_bytes,
    });
    idle.filter(move |idle| idle.address + idle.bytes <= end)
}
