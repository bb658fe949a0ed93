//! The cache itself: the sequence of its choices.

use std::collections::BTreeSet;

use super::recent::Recent;
use super::table::{Idle, Run, Table};
use super::{Granted, Growth, Need, On, Piece, Rules, Segment, Spare, State, Statistics, Uses};
use crate::backend::Address;
use crate::error::OutOfMemory;
use crate::op::StreamId;

/// Memory that was reserved, in pieces that are handed out and come back.
///
/// ```
/// use sidestream::alloc::{Cache, Need, On, Rules, Spare, State, Uses};
/// use sidestream::backend::Address;
/// use sidestream::op::{DeviceId, StreamId};
///
/// /// The streams of the last uses. A real tracker knows the points there, too.
/// #[derive(Clone, Default)]
/// struct Streams(Vec<StreamId>);
///
/// impl Uses for Streams {
///     fn merge(&mut self, other: Streams) {
///         self.0.extend(other.0);
///     }
///     fn on(&self) -> On {
///         match self.0[..] {
///             [] => On::Nobody,
///             [stream] => On::Only(stream),
///             _ => On::Several,
///         }
///     }
/// }
///
/// let stream = StreamId(0);
/// let mut cache: Cache<Streams> = Cache::new(Rules::device(DeviceId(0), 1 << 30));
/// let first = loop {
///     match cache.alloc(1000, Some(stream), |_| State::Pending) {
///         Ok(granted) => break granted.piece,
///         // Here the driver is called.
///         Err(Need::Segment(growth)) => cache.add_segment(Address(1 << 32), growth.bytes),
///         Err(_) => panic!("there is room"),
///     }
/// };
/// let at = first.address;
/// cache.free(first, Streams(vec![stream]));
/// // The same stream gets it again at once: its own order is enough.
/// let second = cache.alloc(1000, Some(stream), |_| State::Pending).ok();
/// assert_eq!(second.map(|granted| granted.piece.address), Some(at));
/// ```
#[derive(Debug)]
pub struct Cache<U> {
    rules: Rules,
    table: Table<U>,
    recent: Recent,
    /// The driver had no memory when this much would have been reserved.
    refused_at: Option<u64>,
    /// Ends of ranges that the driver cannot continue.
    closed: BTreeSet<u64>,
    /// Free and seen to be over.
    over_bytes: u64,
    counts: Statistics,
}

impl<U: Uses> Cache<U> {
    /// A cache that holds nothing.
    pub fn new(rules: Rules) -> Cache<U> {
        Cache {
            rules,
            table: Table::new(rules.joins),
            recent: Recent::default(),
            refused_at: None,
            closed: BTreeSet::new(),
            over_bytes: 0,
            counts: Statistics::default(),
        }
    }

    /// Hands out memory for at least one and at least `bytes` bytes to somebody who will use it on
    /// the stream `home` first; none is the host.
    ///
    /// `state` says how uses look from there. It is asked only for memory that might fit, once a
    /// piece, and not where the answer follows from [`Uses::on`]; when idle segments have to go, for
    /// all that is free. Many pieces may wait for the same stream: keep its last answers.
    ///
    /// # Errors
    /// What is needed first. Nothing is granted then.
    #[inline]
    pub fn alloc(
        &mut self,
        bytes: u64,
        home: Option<StreamId>,
        mut state: impl FnMut(&U) -> State,
    ) -> Result<Granted<U>, Need<U>> {
        if let Some(granted) = self.alloc_at_once(bytes, home) {
            return Ok(granted);
        }
        let Some(rounded) = self.rounded(bytes) else {
            return Err(Need::OutOfMemory(self.out_of_memory(bytes)));
        };
        // What other streams used: only the longest freed is asked about.
        if let Some(record) = self.recent.longest_waiting(rounded) {
            let is_own = matches!(self.table.on(record), On::Only(stream) if Some(stream) == home);
            if is_own || state(self.table.uses_of(record)) != State::Pending {
                self.recent.take_longest_waiting(rounded, &self.table);
                match is_own {
                    true => self.counts.reuses_own += 1,
                    false => self.counts.reuses_over += 1,
                }
                return Ok(self.grant(record, home, false));
            }
        }
        self.search(bytes, rounded, home, state)
    }

    /// The same if memory of just this size was freed lately about which nobody has to be asked:
    /// the stream's own, or what nobody uses.
    #[inline]
    pub(crate) fn alloc_at_once(
        &mut self,
        bytes: u64,
        home: Option<StreamId>,
    ) -> Option<Granted<U>> {
        let rounded = self.rounded(bytes)?;
        if home.is_some()
            && let Some(record) = self.recent.pop(home, rounded, &mut self.table)
        {
            self.counts.reuses_own += 1;
            return Some(self.grant(record, home, false));
        }
        let record = self.recent.pop(None, rounded, &mut self.table)?;
        self.counts.reuses_over += 1;
        Some(self.grant(record, home, false))
    }

    /// What a piece for so many bytes takes.
    #[inline]
    fn rounded(&self, bytes: u64) -> Option<u64> {
        let over_bytes = self.rules.align_bytes - 1;
        let padded = bytes.max(1).checked_add(over_bytes)?;
        Some(padded & !over_bytes)
    }

    /// Takes a piece back with its last uses; what it carried when it was granted has to be among
    /// them, as far as it is not over. Never waits, and asks nobody.
    ///
    /// # Panics
    /// If the piece is of another cache, as far as that shows.
    #[inline]
    #[track_caller]
    pub fn free(&mut self, piece: Piece, uses: U) {
        let on = uses.on();
        self.table.leave(&piece, uses, on);
        self.counts.frees += 1;
        self.counts.allocated_bytes -= piece.bytes;
        if on == On::Nobody {
            self.over_bytes += piece.bytes;
        }
        let home = piece.home.checked_sub(1).map(StreamId);
        self.recent.push(piece.record, home, &mut self.table);
    }

    /// Takes in memory that the driver gave. Where it continues another segment and the rules say
    /// that they join, pieces may span both.
    pub fn add_segment(&mut self, address: Address, bytes: u64) {
        self.add_used_segment(address, bytes, U::default());
    }

    /// The same of memory that was used before it went back to the driver. All of that is over;
    /// whoever gets a part of it gets these uses with it.
    pub(crate) fn add_used_segment(&mut self, address: Address, bytes: u64, uses: U) {
        self.table.add(address.0, bytes, uses);
        self.over_bytes += bytes;
        self.counts.segments += 1;
        self.counts.reserved_bytes += bytes;
        let peak = &mut self.counts.reserved_peak_bytes;
        *peak = (*peak).max(self.counts.reserved_bytes);
    }

    /// The driver had no such memory. It is not asked for that much again until some was given
    /// back, the limit was set, or an allocation failed.
    pub fn segment_refused(&mut self, bytes: u64) {
        let refused_at = self.counts.reserved_bytes.saturating_add(bytes);
        self.refused_at = Some(self.refused_at.map_or(refused_at, |at| at.min(refused_at)));
    }

    /// Memory cannot be added at this address: new memory will be asked for elsewhere.
    pub fn cannot_extend(&mut self, at: Address) {
        self.closed.insert(at.0);
    }

    /// Takes out all segments in which nothing is allocated. Wait for their uses, then give them
    /// back to the driver.
    pub fn empty_cache(&mut self) -> Vec<Segment<U>> {
        self.sort();
        self.release(self.table.idle(), u64::MAX)
    }

    /// The most that may be reserved, from here on. What is reserved already stays.
    pub fn set_limit(&mut self, bytes: u64) {
        self.rules.limit_bytes = bytes;
        self.refused_at = None;
    }

    /// Looks at everything that is free and notes what is over.
    pub fn look(&mut self, mut is_over: impl FnMut(&U) -> bool) {
        self.sort();
        self.over_bytes += self.table.look(&mut is_over);
    }

    /// What was counted so far.
    pub fn statistics(&self) -> Statistics {
        let active_bytes = self.counts.reserved_bytes - self.over_bytes;
        Statistics {
            active_bytes,
            ..self.counts
        }
    }

    /// The way of an allocation whose stack is empty.
    #[inline(never)]
    fn search(
        &mut self,
        asked_bytes: u64,
        bytes: u64,
        home: Option<StreamId>,
        mut state: impl FnMut(&U) -> State,
    ) -> Result<Granted<U>, Need<U>> {
        self.sort();
        self.table.forget_answers();
        if let Some(run) = self.table.find_own(bytes, home) {
            self.counts.reuses_own += 1;
            return Ok(self.take(run, bytes, home, false));
        }
        let over_bytes = &mut self.over_bytes;
        if let Some(run) = (self.table).find_over(bytes, home, &mut state, over_bytes) {
            self.counts.reuses_over += 1;
            return Ok(self.take(run, bytes, home, false));
        }
        let spared = self.spared_bytes(bytes);
        if let Some(growth) = self.growth(bytes, home, spared, &mut state) {
            return Err(Need::Segment(growth));
        }
        let limit = self.rules.limit_bytes;
        if self.rules.spare.is_some_and(|spare| !spare.waits) {
            let over = self.make_room(bytes, spared, false, &mut state);
            if !over.is_empty() {
                return Err(Need::Release(over));
            }
            if let Some(growth) = self.growth(bytes, home, limit, &mut state) {
                return Err(Need::Segment(growth));
            }
        }
        if let Some(run) = self.table.find_any(bytes) {
            if home.is_none() {
                return Err(Need::Wait(self.table.uses(run)));
            }
            self.counts.waits_inserted += 1;
            return Ok(self.take(run, bytes, home, true));
        }
        let idle = self.make_room(bytes, spared, true, &mut state);
        if !idle.is_empty() {
            return Err(Need::Release(idle));
        }
        if let Some(growth) = self.growth(bytes, home, limit, &mut state) {
            return Err(Need::Segment(growth));
        }
        let idle = self.make_room(bytes, limit, true, &mut state);
        if !idle.is_empty() {
            return Err(Need::Release(idle));
        }
        self.refused_at = None;
        Err(Need::OutOfMemory(self.out_of_memory(asked_bytes)))
    }

    /// Moves what was freed lately into the table, where neighbours are found.
    fn sort(&mut self) {
        while let Some(record) = self.recent.drain(&self.table) {
            self.table.settle(record);
        }
    }

    fn take(&mut self, run: Run, bytes: u64, home: Option<StreamId>, waits: bool) -> Granted<U> {
        let record = self.table.take(run, bytes, &mut self.over_bytes);
        self.grant(record, home, waits)
    }

    /// Hands out a record that is free, in neither a stack nor a hole.
    #[inline]
    fn grant(&mut self, record: u32, home: Option<StreamId>, waits: bool) -> Granted<U> {
        let (piece, carried, on) = self.table.enter(record, home);
        if on == On::Nobody {
            self.over_bytes -= piece.bytes;
        }
        let counts = &mut self.counts;
        counts.allocations += 1;
        counts.allocated_bytes += piece.bytes;
        counts.allocated_peak_bytes = counts.allocated_peak_bytes.max(counts.allocated_bytes);
        let active_bytes = counts.reserved_bytes - self.over_bytes;
        counts.active_peak_bytes = counts.active_peak_bytes.max(active_bytes);
        Granted {
            piece,
            carried,
            waits,
        }
    }

    /// What new memory would do, if it may be had: the least that makes the bytes fit.
    fn growth(
        &mut self,
        bytes: u64,
        home: Option<StreamId>,
        limit_bytes: u64,
        state: &mut impl FnMut(&U) -> State,
    ) -> Option<Growth> {
        let granule = self.rules.granule_bytes;
        let whole = bytes.checked_next_multiple_of(granule)?;
        let mut growth = Growth {
            at: None,
            bytes: whole,
        };
        if self.rules.joins {
            let ends = self.table.ends(home, state, &mut self.over_bytes);
            let open = ends
                .iter()
                .filter(|end| !self.closed.contains(&end.address));
            let missing = open.filter_map(|end| {
                let missing_bytes = bytes.saturating_sub(end.tail_bytes);
                let missing = missing_bytes.next_multiple_of(granule);
                let room = end.room_bytes;
                if missing <= room {
                    return Some((missing, end.address));
                }
                let fills = room % granule == 0 && missing_bytes - room <= end.head_bytes;
                fills.then_some((room, end.address))
            });
            if let Some((missing, at)) = missing.min() {
                growth = Growth {
                    at: Some(Address(at)),
                    bytes: missing,
                };
            }
        }
        let then = self.counts.reserved_bytes.checked_add(growth.bytes)?;
        let is_refused = self.refused_at.is_some_and(|at| then >= at);
        (then <= limit_bytes && !is_refused).then_some(growth)
    }

    /// The most that is reserved as long as the low-memory steps can avoid more.
    fn spared_bytes(&self, bytes: u64) -> u64 {
        let limit = self.rules.limit_bytes;
        let Some(Spare { percent, .. }) = self.rules.spare else {
            return limit;
        };
        let now = self.counts.allocated_bytes.saturating_add(bytes);
        let peak = now.max(self.counts.allocated_peak_bytes);
        let spare = u128::from(peak) * u128::from(percent) / 100;
        u64::try_from(u128::from(peak) + spare).map_or(limit, |most| most.min(limit))
    }

    /// Idle segments that have to go so that a new one fits; none if that would not help. Those with
    /// uses that are not over are among them only if somebody `waits` for these.
    fn make_room(
        &mut self,
        bytes: u64,
        limit_bytes: u64,
        waits: bool,
        state: &mut impl FnMut(&U) -> State,
    ) -> Vec<Segment<U>> {
        let granule = self.rules.granule_bytes;
        let Some(whole) = bytes.checked_next_multiple_of(granule) else {
            return Vec::new();
        };
        let reserved = self.counts.reserved_bytes;
        // Where the driver refused, nobody knows how much is missing: everything goes.
        let missing = match self.refused_at {
            Some(_) => u64::MAX,
            None => (reserved.saturating_add(whole)).saturating_sub(limit_bytes),
        };
        let mut idle = self.table.idle();
        let tail = if self.rules.joins {
            self.table.busy_tail_bytes()
        } else {
            0
        };
        let needed = bytes.saturating_sub(tail).next_multiple_of(granule);
        let fits_without = |idle: &[Idle]| {
            let kept = reserved - idle.iter().map(|idle| idle.bytes).sum::<u64>();
            kept.saturating_add(needed) <= limit_bytes
        };
        if !fits_without(&idle) {
            return Vec::new();
        }
        // What is over costs no time on the host; and large holes are kept.
        let over = self.table.idle_over(state, &mut self.over_bytes);
        if !waits {
            idle.retain(|idle| over.contains(idle));
            if !fits_without(&idle) {
                return Vec::new();
            }
        }
        idle.sort_by_key(|idle| (!over.contains(idle), idle.hole_bytes, idle.address));
        self.release(idle, missing)
    }

    /// Takes these segments out, until at least so many bytes are gone.
    fn release(&mut self, idle: Vec<Idle>, bytes: u64) -> Vec<Segment<U>> {
        let mut released = Vec::new();
        let mut released_bytes = 0;
        for Idle {
            address,
            bytes: segment_bytes,
            ..
        } in idle
        {
            if released_bytes >= bytes {
                break;
            }
            released_bytes += segment_bytes;
            released.push(Segment {
                address: Address(address),
                bytes: segment_bytes,
                uses: (self.table).remove(address, segment_bytes, &mut self.over_bytes),
            });
        }
        if released_bytes > 0 {
            self.refused_at = None;
            self.closed.clear();
        }
        self.counts.reserved_bytes -= released_bytes;
        self.counts.segments -= released.len() as u64;
        self.counts.released_bytes += released_bytes;
        released
    }

    fn out_of_memory(&self, asked_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            device: self.rules.device,
            asked_bytes,
            allocated_bytes: self.counts.allocated_bytes,
            reserved_bytes: self.counts.reserved_bytes,
            limit_bytes: self.rules.limit_bytes,
        }
    }
}
