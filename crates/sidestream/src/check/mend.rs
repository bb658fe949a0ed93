//! Groups races by the call that fixes them.

use super::{Fix, Race, RaceKind, Report, Severity};
use crate::op::{BufferId, EventId, OpId, StreamId, ThreadId};

/// A call and the races that it fixes: those that it orders, once inserted at the place that the fix names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mend {
    /// The call to insert, and where.
    pub fix: Fix,
    /// The index in the report of the race that `fix` was made for: the call belongs before its second operation.
    pub first: usize,
    /// The indices in the report of all races that the call fixes, the most telling first.
    pub races: Vec<usize>,
}

/// The key of a fix: one call may fix several races whose keys are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    WaitStream(StreamId, StreamId, ThreadId),
    SyncStream(StreamId, ThreadId),
    SyncEvent(EventId, ThreadId),
    RecordStream(BufferId, StreamId, OpId),
    Alone(usize),
}

impl Report {
    /// Returns the calls that fix the races, in program order, each with its races.
    ///
    /// `fix_of` chooses the fix of a race where there are several; usually [`Race::fix`].
    pub fn mends(&self, fix_of: impl Fn(&Race) -> Fix) -> Vec<Mend> {
        let mut places: Vec<(Sort, OpId, usize)> = (0..self.races.len())
            .map(|at| {
                let (sort, before) = sort_of(fix_of(&self.races[at]), at);
                (sort, before, at)
            })
            .collect();
        places.sort();
        let mut mends: Vec<(OpId, Sort, Mend)> = Vec::new();
        for (sort, before, at) in places {
            let race = &self.races[at];
            // The call belongs before the earliest second operation. It also fixes a later race if the first
            // operation of that race was called before this place.
            match mends.last_mut() {
                Some((place, known, mend)) if *known == sort && race.first < *place => {
                    mend.races.push(at);
                }
                _ => {
                    let (fix, races) = (fix_of(race), vec![at]);
                    let first = at;
                    mends.push((before, sort, Mend { fix, first, races }));
                }
            }
        }
        mends.sort_by_key(|(before, _, mend)| (*before, mend.first));
        let telling = |at: &usize| {
            let race = &self.races[*at];
            let warns = race.severity() == Severity::Warn;
            (warns, rank(race.kind), *at)
        };
        mends
            .into_iter()
            .map(|(_, _, mut mend)| {
                mend.races.sort_by_key(telling);
                mend
            })
            .collect()
    }
}

/// Returns the key of a fix, and the operation before which its call belongs.
fn sort_of(fix: Fix, at: usize) -> (Sort, OpId) {
    let (thread, before) = fix.at();
    let sort = match fix {
        Fix::WaitStream { stream, source, .. } => Sort::WaitStream(stream, source, thread),
        Fix::SyncStream { stream, .. } => Sort::SyncStream(stream, thread),
        Fix::SyncEvent { event, .. } => Sort::SyncEvent(event, thread),
        Fix::RecordStream { buffer, stream, .. } => Sort::RecordStream(buffer, stream, before),
        Fix::Flag { .. } => Sort::Alone(at),
    };
    (sort, before)
}

/// Ranks race kinds: a read before its write is more telling than two writes.
fn rank(kind: RaceKind) -> u8 {
    match kind {
        RaceKind::HostRaw | RaceKind::Raw => 0,
        RaceKind::Uaf | RaceKind::Uba => 1,
        RaceKind::HostWar | RaceKind::War => 2,
        RaceKind::HostWaw | RaceKind::Waw => 3,
        RaceKind::Timing => 4,
    }
}
