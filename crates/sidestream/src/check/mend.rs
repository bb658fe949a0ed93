//! Which races one call mends.

use super::{Fix, Race, RaceKind, Report, Severity};
use crate::op::{BufferId, EventId, OpId, StreamId, ThreadId};

/// A call, and the races that it mends: those that it orders once it stands where it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mend {
    /// The call.
    pub fix: Fix,
    /// The race that it is the fix of, by its place in the report: the first that it has to come before.
    pub first: usize,
    /// All that it mends, by their places in the report, the most telling first.
    pub races: Vec<usize>,
}

/// What calls have in common of which one may do for several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    WaitStream(StreamId, StreamId, ThreadId),
    SyncStream(StreamId, ThreadId),
    SyncEvent(EventId, ThreadId),
    RecordStream(BufferId, StreamId, OpId),
    Alone(usize),
}

impl Report {
    /// The races by the calls that mend them, in the order in which the calls stand in the program.
    ///
    /// `fix_of` says how a race is to be mended, where there is a choice: as a rule by its fix.
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
            // The call stands before the earliest of the second operations. It does for a later one too if that one's
            // first operation was there by then.
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
            let warns = race.severity == Severity::Warn;
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

/// What sort of call this is, and before which operation it stands.
fn sort_of(fix: Fix, at: usize) -> (Sort, OpId) {
    match fix {
        Fix::WaitStream {
            stream,
            source,
            before,
            thread,
        } => (Sort::WaitStream(stream, source, thread), before),
        Fix::SyncStream {
            stream,
            before,
            thread,
        } => (Sort::SyncStream(stream, thread), before),
        Fix::SyncEvent {
            event,
            before,
            thread,
        } => (Sort::SyncEvent(event, thread), before),
        Fix::RecordStream {
            buffer,
            stream,
            before,
            ..
        } => (Sort::RecordStream(buffer, stream, before), before),
        Fix::Flag { before, .. } => (Sort::Alone(at), before),
    }
}

/// What is read before it was written tells more than what is written twice.
fn rank(kind: RaceKind) -> u8 {
    match kind {
        RaceKind::HostRaw | RaceKind::Raw => 0,
        RaceKind::Uaf | RaceKind::Uba => 1,
        RaceKind::HostWar | RaceKind::War => 2,
        RaceKind::HostWaw | RaceKind::Waw => 3,
        RaceKind::Timing => 4,
    }
}
