//! The cache: the order in which it tries its choices.

use std::collections::BTreeSet;

use super::recent::Recent;
use super::table::{Idle, Run, Table};
use super::{Granted, Growth, Need, On, Piece, Rules, Segment, Spare, State, Statistics, Uses};
use crate::backend::Address;
use crate::error::OutOfMemory;
use crate::op::StreamId;

/// A cache of reserved memory, in pieces that are allocated and freed.
///
/// ```
/// use sidestream::alloc::{Cache, Need, On, Rules, Spare, State, Uses};
/// use sidestream::backend::Address;
/// use sidestream::op::{DeviceId, StreamId};
///
/// /// The streams of the last uses. A real tracker also knows the points of the uses.
/// #[derive(Clone, Default)]
/// struct Streams(Vec<StreamId>);
///
/// impl Uses for Streams {
///     fn merge(&mut self, other: Streams) {
///         self.0.extend(other.0);
///     }
///     fn on(&self) -> On {
///         match self.0[..] {
///             [] => On::NoStream,
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
///         // A real caller calls the driver here.
///         Err(Need::Segment(growth)) => cache.add_segment(Address(1 << 32), growth.bytes),
///         Err(_) => panic!("there is room"),
///     }
/// };
/// let at = first.address;
/// cache.free(first, Streams(vec![stream]));
/// // The same stream may reuse it at once: stream order is enough.
/// let second = cache.alloc(1000, Some(stream), |_| State::Pending).ok();
/// assert_eq!(second.map(|granted| granted.piece.address), Some(at));
/// ```
#[derive(Debug)]
pub struct Cache<U> {
    rules: Rules,
    table: Table<U>,
    recent: Recent,
    /// The total size at which the driver last refused to reserve more.
    refused_at: Option<u64>,
    /// Ends of address ranges that the driver cannot extend.
    closed: BTreeSet<u64>,
    /// The bytes that are free and whose uses were seen to be complete.
    over_bytes: u64,
    counts: Statistics,
}

impl<U: Uses> Cache<U> {
    /// Returns an empty cache.
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

    /// Allocates at least `bytes` bytes, and at least one, for first use on the stream `home`, or on the host if `None`.
    ///
    /// `state` returns the state of uses for that stream. It is called only for pieces that might fit, once for each, and not
    /// where the answer follows from [`Uses::on`]; when idle segments must be released, it is called for all free pieces. Many
    /// pieces may have uses on the same stream, so `state` should cache its answers.
    ///
    /// # Errors
    /// The step that the caller must take before it tries again. Nothing is allocated then.
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
        // Of the pieces that other streams used, only the one freed first is examined.
        if let Some(record) = self.recent.longest_waiting(rounded) {
            let is_own = matches!(self.table.on(record), On::Only(stream) if Some(stream) == home);
            if is_own || state(self.table.uses_of(record)) != State::Pending {
                self.recent.take_longest_waiting(rounded, &self.table);
                if is_own {
                    self.counts.reuses_own += 1
                } else {
                    self.counts.reuses_over += 1
                }
                return Ok(self.grant(record, home, false));
            }
        }
        self.search(bytes, rounded, home, state)
    }

    /// Allocates memory of exactly this size that was freed recently and needs no call of `state`: memory used only by
    /// the stream itself, or by no stream.
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

    /// Returns the size of a piece for this many bytes.
    #[inline]
    fn rounded(&self, bytes: u64) -> Option<u64> {
        let over_bytes = self.rules.align_bytes - 1;
        let padded = bytes.max(1).checked_add(over_bytes)?;
        Some(padded & !over_bytes)
    }

    /// Frees a piece, with its last uses; these must include the uses that it carried when it was allocated, as far as they are
    /// not complete. Never blocks, and calls nothing.
    ///
    /// # Panics
    /// If the piece belongs to another cache, as far as that can be detected.
    #[inline]
    #[track_caller]
    pub fn free(&mut self, piece: Piece, uses: U) {
        let on = uses.on();
        self.table.leave(&piece, uses, on);
        self.counts.frees += 1;
        self.counts.allocated_bytes -= piece.bytes;
        if on == On::NoStream {
            self.over_bytes += piece.bytes;
        }
        let home = piece.home.checked_sub(1).map(StreamId);
        self.recent.push(piece.record, home, &mut self.table);
    }

    /// Adds memory from the driver. Where it is adjacent to another segment and the rules let segments join, pieces may span
    /// both.
    pub fn add_segment(&mut self, address: Address, bytes: u64) {
        self.add_used_segment(address, bytes, U::default());
    }

    /// Like [`Cache::add_segment`], but for memory that was used before it was returned to the driver. These uses are complete; an
    /// allocation from this memory carries them.
    pub(crate) fn add_used_segment(&mut self, address: Address, bytes: u64, uses: U) {
        self.table.add(address.0, bytes, uses);
        self.over_bytes += bytes;
        self.counts.segments += 1;
        self.counts.reserved_bytes += bytes;
        let peak = &mut self.counts.reserved_peak_bytes;
        *peak = (*peak).max(self.counts.reserved_bytes);
    }

    /// Notes that the driver refused to reserve memory. The cache does not request that much again until some memory
    /// was returned, the limit was set, or an allocation failed.
    pub fn segment_refused(&mut self, bytes: u64) {
        let refused_at = self.counts.reserved_bytes.saturating_add(bytes);
        self.refused_at = Some(self.refused_at.map_or(refused_at, |at| at.min(refused_at)));
    }

    /// Notes that memory cannot be added at this address: new memory will be requested elsewhere.
    pub fn cannot_extend(&mut self, at: Address) {
        self.closed.insert(at.0);
    }

    /// Removes all segments in which nothing is allocated. The caller must wait for their uses, and then return them to the
    /// driver.
    pub fn empty_cache(&mut self) -> Vec<Segment<U>> {
        self.sort();
        self.release(self.table.idle(), u64::MAX)
    }

    /// Sets the maximum number of bytes that may be reserved. Memory that is already reserved stays.
    pub fn set_limit(&mut self, bytes: u64) {
        self.rules.limit_bytes = bytes;
        self.refused_at = None;
    }

    /// Examines all free pieces, and notes those that have only complete uses.
    pub fn look(&mut self, mut is_complete: impl FnMut(&U) -> bool) {
        self.sort();
        self.over_bytes += self.table.look(&mut is_complete);
    }

    /// Returns the statistics so far.
    pub fn statistics(&self) -> Statistics {
        let active_bytes = self.counts.reserved_bytes - self.over_bytes;
        Statistics {
            active_bytes,
            ..self.counts
        }
    }

    /// Allocates when the stack for the size is empty.
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

    /// Moves recently freed pieces into the table, where they are joined with their neighbours.
    fn sort(&mut self) {
        while let Some(record) = self.recent.drain(&self.table) {
            self.table.settle(record);
        }
    }

    fn take(&mut self, run: Run, bytes: u64, home: Option<StreamId>, waits: bool) -> Granted<U> {
        let record = self.table.take(run, bytes, &mut self.over_bytes);
        self.grant(record, home, waits)
    }

    /// Allocates a free record that is in neither a stack nor a hole.
    #[inline]
    fn grant(&mut self, record: u32, home: Option<StreamId>, waits: bool) -> Granted<U> {
        let (piece, carried, on) = self.table.enter(record, home);
        if on == On::NoStream {
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

    /// Returns the smallest amount of new memory with which the bytes fit, if the limit permits it.
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

    /// Returns the size up to which memory is reserved before the low-memory steps are tried.
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

    /// Returns the idle segments to release so that a new one fits; `None` if that would not help. Segments with uses that are
    /// not complete are among them only if the caller `waits` for these.
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
        // If the driver refused, the missing amount is unknown, so everything is released.
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
        // Segments with complete uses cost no host wait; large holes are kept.
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

    /// Removes these segments, until at least this many bytes are removed.
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
