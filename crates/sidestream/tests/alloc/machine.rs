//! A machine for the cache, and a naive oracle that checks it.
//!
//! Streams complete their work late. The oracle knows for every byte who used it last, by intervals in a plain list,
//! and checks each piece that is handed out: it overlaps no other, no pending use of it is forgotten, and where no
//! wait is requested none is missing.

use std::collections::BTreeMap;

use sidestream::alloc::{Cache, Growth, Need, On, Piece, Rules, Segment, State, Uses};
use sidestream::backend::Address;
use sidestream::error::OutOfMemory;
use sidestream::op::StreamId;

use crate::drawn::Random;

/// Last uses: how far each stream must have progressed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Last(pub Vec<(StreamId, u64)>);

impl Uses for Last {
    fn merge(&mut self, other: Last) {
        for (stream, token) in other.0 {
            match self.0.iter_mut().find(|(mine, _)| *mine == stream) {
                Some((_, mine)) => *mine = token.max(*mine),
                None => self.0.push((stream, token)),
            }
        }
    }

    fn on(&self) -> On {
        match self.0[..] {
            [] => On::NoStream,
            [(stream, _)] => On::Only(stream),
            _ => On::Several,
        }
    }
}

/// Bytes that a stream uses until it has progressed this far.
#[derive(Clone, Copy, Debug)]
struct Use {
    start: u64,
    end: u64,
    stream: usize,
    token: u64,
}

/// A stream waits at some point until another has progressed this far.
struct Wait {
    stream: usize,
    from: u64,
    other: usize,
    until: u64,
}

/// A piece that is handed out.
pub struct Held {
    pub piece: Piece,
    pub carried: Last,
    pub waits: bool,
    pub home: Option<StreamId>,
    pub asked_bytes: u64,
    before: Vec<Use>,
}

pub struct Machine {
    rules: Rules,
    pub asks: u64,
    pub host_waits: u64,
    /// Total memory of the machine.
    pub memory_bytes: u64,
    /// One growth in this many cannot be placed at the requested address.
    pub apart_one_in: Option<u64>,
    /// Maximum size of a segment of a growth.
    pub chunk_bytes: u64,
    random: Random,
    issued: Vec<u64>,
    finished: Vec<u64>,
    waits: Vec<Wait>,
    /// By stream, how far it waits for each other stream.
    known: Vec<Vec<u64>>,
    uses: Vec<Use>,
    held: BTreeMap<u64, u64>,
    segments: BTreeMap<u64, u64>,
    next_range: u64,
}

impl Machine {
    pub fn new(rules: Rules, streams: usize, seed: u64) -> Machine {
        Machine {
            rules,
            asks: 0,
            host_waits: 0,
            memory_bytes: u64::MAX,
            apart_one_in: None,
            chunk_bytes: 1 << 40,
            random: Random(seed),
            issued: vec![0; streams],
            finished: vec![0; streams],
            waits: Vec::new(),
            known: vec![vec![0; streams]; streams],
            uses: Vec::new(),
            held: BTreeMap::new(),
            segments: BTreeMap::new(),
            next_range: 1 << 32,
        }
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.segments.values().sum()
    }

    pub fn segments(&self) -> u64 {
        self.segments.len() as u64
    }

    /// Returns the sizes of contiguous memory, or of single segments where they do not join. The largest come first:
    /// a fitting piece exists for each in turn.
    pub fn ranges(&self) -> Vec<u64> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (&start, &bytes) in &self.segments {
            match ranges.last_mut() {
                Some((_, end)) if *end == start && self.rules.joins => *end += bytes,
                _ => ranges.push((start, start + bytes)),
            }
        }
        let mut sizes: Vec<u64> = ranges.iter().map(|(start, end)| end - start).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// Allocates as a runtime does, and checks the result.
    #[track_caller]
    pub fn alloc(
        &mut self,
        cache: &mut Cache<Last>,
        bytes: u64,
        home: Option<StreamId>,
    ) -> Result<Held, OutOfMemory> {
        for _ in 0..1_000 {
            let (mut asks, mut asked_own) = (0, false);
            let answer = cache.alloc(bytes, home, |uses| {
                asks += 1;
                match uses.on() {
                    On::NoStream => panic!("queried a piece without uses"),
                    On::Only(stream) => asked_own |= Some(stream) == home,
                    On::Several => {}
                }
                self.state(uses, home)
            });
            self.asks += asks;
            match answer {
                Ok(granted) => {
                    // A cache that may not wait queries everything that could be released before it requests new
                    // memory.
                    let spares = self.rules.spare.is_some_and(|spare| !spare.waits);
                    assert!(spares || !asked_own, "queried its own uses without need");
                    let mut held = Held {
                        piece: granted.piece,
                        carried: granted.carried,
                        waits: granted.waits,
                        home,
                        asked_bytes: bytes,
                        before: Vec::new(),
                    };
                    self.check_and_note(&mut held);
                    return Ok(held);
                }
                Err(Need::Segment(growth)) => self.grow(cache, growth),
                Err(Need::Release(segments)) => {
                    assert!(!segments.is_empty(), "released nothing");
                    self.release(segments);
                }
                Err(Need::Wait(uses)) => {
                    assert_eq!(home, None, "a stream can wait itself");
                    assert_ne!(self.state(&uses, None), State::Over, "nothing to wait for");
                    self.wait_on_host(&uses);
                }
                Err(Need::OutOfMemory(sizes)) => return Err(sizes),
            }
        }
        panic!("an allocation of {bytes} bytes does not end");
    }

    /// Frees a piece that its home stream used last, or that is unused.
    pub fn free(&mut self, cache: &mut Cache<Last>, held: Held, on: &[StreamId]) {
        let (start, end) = bounds(&held.piece);
        self.held.remove(&start);
        let mut uses = held.carried;
        if let Some(home) = held.home.filter(|_| !on.is_empty()) {
            // The tenant waited on its home stream for the earlier ones.
            let waited = |u: &Use| u.stream == home.0 as usize || on.contains(&home);
            uses.0.clear();
            for kept in held.before.iter().filter(|u| !waited(u)) {
                uses.merge(Last(vec![(StreamId(kept.stream as u32), kept.token)]));
                self.uses.push(*kept);
            }
        } else {
            self.uses.extend(&held.before);
        }
        for &stream in on {
            let token = self.issue(stream);
            uses.merge(Last(vec![(stream, token)]));
            self.uses.push(Use {
                start,
                end,
                stream: stream.0 as usize,
                token,
            });
        }
        cache.free(held.piece, uses);
    }

    fn issue(&mut self, stream: StreamId) -> u64 {
        let issued = &mut self.issued[stream.0 as usize];
        *issued += 1;
        *issued
    }

    /// Every stream completes a part of its work, and leaves at most `lag` uses.
    pub fn progress(&mut self, lag: u64) {
        for stream in 0..self.issued.len() {
            let left = self.random.below(lag + 1);
            self.finish(stream, self.issued[stream].saturating_sub(left));
        }
    }

    pub fn finish_all(&mut self) {
        self.finished.clone_from(&self.issued);
    }

    /// A stream progresses this far, and so does everything that it waits for.
    fn finish(&mut self, stream: usize, until: u64) {
        if self.finished[stream] >= until {
            return;
        }
        self.finished[stream] = until;
        let due = |w: &Wait| w.stream == stream && w.from <= until;
        let others: Vec<(usize, u64)> = (self.waits.iter())
            .filter(|w| due(w))
            .map(|w| (w.other, w.until))
            .collect();
        for (other, until) in others {
            self.finish(other, until);
        }
        let Machine {
            waits, finished, ..
        } = self;
        waits.retain(|w| finished[w.other] < w.until);
    }

    pub fn wait_on_host(&mut self, uses: &Last) {
        self.host_waits += 1;
        for &(stream, token) in &uses.0 {
            self.finish(stream.0 as usize, token);
        }
    }

    pub fn is_complete(&self, uses: &Last) -> bool {
        let mut uses = uses.0.iter();
        uses.all(|&(stream, token)| self.finished[stream.0 as usize] >= token)
    }

    fn state(&self, uses: &Last, home: Option<StreamId>) -> State {
        let is_ordered = |&(stream, token): &(StreamId, u64)| {
            self.finished[stream.0 as usize] >= token
                || home.is_some_and(|home| self.knows(home, stream.0 as usize, token))
        };
        if self.is_complete(uses) {
            State::Over
        } else if uses.0.iter().all(is_ordered) {
            State::Ordered
        } else {
            State::Pending
        }
    }

    fn knows(&self, home: StreamId, stream: usize, token: u64) -> bool {
        home.0 as usize == stream || self.known[home.0 as usize][stream] >= token
    }

    fn check_and_note(&mut self, held: &mut Held) {
        let (start, end) = bounds(&held.piece);
        let align = self.rules.align_bytes;
        assert_eq!(start % align, 0, "a piece starts at {start:#x}");
        assert_eq!(held.piece.bytes % align, 0);
        let wanted = held.asked_bytes.max(1);
        assert!(held.piece.bytes >= wanted && held.piece.bytes - wanted < align);
        assert!(self.is_covered(start, end), "outside the segments");
        let overlapped = self.held.range(..end).next_back();
        let overlapped = overlapped.filter(|&(_, &other_end)| other_end > start);
        assert_eq!(overlapped, None, "handed out twice");
        self.held.insert(start, end);

        held.before = self.cut_uses(start, end);
        let pending = |u: &&Use| self.finished[u.stream] < u.token;
        for use_ in held.before.iter().filter(pending) {
            let carried = held.carried.0.iter();
            let mut same = carried.filter(|(stream, _)| stream.0 as usize == use_.stream);
            assert!(
                same.any(|&(_, token)| token >= use_.token),
                "{use_:?} is forgotten"
            );
            let is_ordered = held
                .home
                .is_some_and(|home| self.knows(home, use_.stream, use_.token));
            assert!(held.waits || is_ordered, "{use_:?} is not ordered");
        }
        if held.waits {
            let home = held.home.expect("the host waits before it takes");
            assert_eq!(self.state(&held.carried, Some(home)), State::Pending);
            self.wait_on_device(home, &held.carried);
        }
    }

    fn wait_on_device(&mut self, home: StreamId, carried: &Last) {
        let at = home.0 as usize;
        for &(stream, token) in &carried.0 {
            let other = stream.0 as usize;
            if other == at || self.finished[other] >= token {
                continue;
            }
            self.known[at][other] = self.known[at][other].max(token);
            self.waits.push(Wait {
                stream: at,
                from: self.issued[at] + 1,
                other,
                until: token,
            });
        }
    }

    /// Removes the known uses of a range.
    fn cut_uses(&mut self, start: u64, end: u64) -> Vec<Use> {
        let mut inside = Vec::new();
        let mut outside = Vec::new();
        for u in self.uses.drain(..) {
            if self.finished[u.stream] >= u.token {
                continue;
            }
            let keep = |from: u64, to: u64, list: &mut Vec<Use>| {
                if from < to {
                    list.push(Use {
                        start: from,
                        end: to,
                        ..u
                    });
                }
            };
            keep(u.start.max(start), u.end.min(end), &mut inside);
            keep(u.start, u.end.min(start), &mut outside);
            keep(u.start.max(end), u.end, &mut outside);
        }
        self.uses = outside;
        inside
    }

    fn is_covered(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        let first = self.segments.range(..=start).next_back();
        let first = first.map_or(start, |(&s, _)| s);
        let mut count = 0;
        for (&s, &bytes) in self.segments.range(first..end) {
            if s <= at && at < s + bytes {
                at = s + bytes;
                count += 1;
            }
        }
        at >= end && (self.rules.joins || count == 1)
    }

    fn grow(&mut self, cache: &mut Cache<Last>, growth: Growth) {
        let Growth { at, bytes } = growth;
        assert_eq!(bytes % self.rules.granule_bytes, 0);
        assert!(bytes > 0);
        let apart = self.apart_one_in.is_some_and(|n| self.random.below(n) == 0);
        if let Some(at) = at.filter(|_| apart) {
            return cache.cannot_extend(at);
        }
        if self.reserved_bytes() + bytes > self.memory_bytes {
            return cache.segment_refused(bytes);
        }
        let at = at.unwrap_or_else(|| {
            self.next_range += 1 << 40;
            Address(self.next_range)
        });
        let taken = self.segments.range(..at.0 + bytes).next_back();
        let taken = taken.filter(|&(&s, &bytes)| s + bytes > at.0);
        assert_eq!(taken, None, "grown over a segment");
        let chunk_bytes = if self.rules.joins {
            self.chunk_bytes
        } else {
            bytes
        };
        for start in (0..bytes).step_by(chunk_bytes as usize) {
            let chunk = chunk_bytes.min(bytes - start);
            self.segments.insert(at.0 + start, chunk);
            cache.add_segment(at.offset(start), chunk);
        }
    }

    /// Releases every segment that can be released.
    pub fn release_idle(&mut self, cache: &mut Cache<Last>) {
        self.release(cache.empty_cache());
    }

    /// Releases segments, as the driver sees it.
    pub fn release(&mut self, segments: Vec<Segment<Last>>) {
        for segment in segments {
            if !self.is_complete(&segment.uses) {
                self.wait_on_host(&segment.uses);
            }
            let Address(start) = segment.address;
            assert_eq!(self.segments.remove(&start), Some(segment.bytes));
            let end = start + segment.bytes;
            let held = self.held.range(..end).next_back();
            assert_eq!(
                held.filter(|&(_, &to)| to > start),
                None,
                "given back in use"
            );
            let uses = self.cut_uses(start, end);
            assert!(uses.is_empty(), "given back before the end of {uses:?}");
        }
    }
}

fn bounds(piece: &Piece) -> (u64, u64) {
    (piece.address.0, piece.address.0 + piece.bytes)
}
