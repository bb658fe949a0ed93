//! Runs a program under many legal schedules, and compares the results.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use sidestream::engine::Profile;
use sidestream::op::{BufferId, Mode, OpId};
use sidestream::sim::{Schedule, Witness};

use crate::check::check;
use crate::program::Program;
use crate::run::{CannotRun, Run, run};

/// The results of many schedules of one program.
pub struct Explored {
    /// Number of schedules that were run.
    pub schedules: usize,
    /// Number of distinct results.
    pub results: usize,
    /// Number of schedules whose result is not that of the usual one.
    pub differing: usize,
    /// Two schedules with different results, if there are any.
    pub difference: Option<Difference>,
}

/// Two runs in which an op found different bytes.
pub struct Difference {
    /// The usual schedule, and its run.
    pub usual: (Schedule, Run),
    /// The other schedule, and its run.
    pub other: (Schedule, Run),
    /// The first op that found different bytes.
    pub op: OpId,
    /// The buffer in which the op found those bytes.
    pub buffer: BufferId,
    /// Whether the op overwrote those bytes; otherwise it read them.
    pub wrote: bool,
    /// Range of the bytes in the buffer.
    pub range: (u64, u64),
    /// The ops that had written the bytes, in the usual run and in the other.
    pub writers: (Option<OpId>, Option<OpId>),
    /// Numbers of atomic accesses since, if the op's own is not atomic.
    pub atomics: (Option<u32>, Option<u32>),
}

/// Runs a program under up to `count` legal schedules: the usual one; for each race that the checker finds, three that
/// delay the first operation's work, its call, or the second operation's work as long as possible; the adversarial
/// one; and then seeded ones.
///
/// # Errors
/// If the program cannot be run under the usual schedule. A schedule that waits forever is skipped.
pub fn explore(program: &Program, profile: &Profile, count: usize) -> Result<Explored, CannotRun> {
    let usual = run(program, profile, Schedule::InOrder, true)?;
    let findings = |run: &Run| -> Vec<Vec<Witness>> {
        let ops = 0..program.ops.len() as u32;
        ops.map(|at| run.sim.witness(OpId(at)).to_vec()).collect()
    };
    let usual_findings = findings(&usual);
    let usual_digest = digest(&usual_findings);
    let mut results = HashSet::from([usual_digest]);
    let (mut schedules, mut differing) = (1, 0);
    let mut found: Option<(Schedule, Run, Place)> = None;
    for schedule in candidates(program).take(count.saturating_sub(1)) {
        let Ok(other) = run(program, profile, schedule, true) else {
            continue;
        };
        schedules += 1;
        let other_findings = findings(&other);
        if found.is_none() {
            let place = first_difference(&usual_findings, &other_findings);
            found = place.map(|place| (schedule, other, place));
        }
        let other_digest = digest(&other_findings);
        differing += usize::from(other_digest != usual_digest);
        results.insert(other_digest);
    }
    let difference = found.and_then(|(schedule, other, place)| {
        let (buffer, start) = buffer_of(&usual, place.op, place.wrote, place.arena, place.start)?;
        Some(Difference {
            op: place.op,
            buffer,
            wrote: place.wrote,
            range: (start, start + (place.end - place.start)),
            writers: place.writers,
            atomics: place.atomics,
            usual: (Schedule::InOrder, usual),
            other: (schedule, other),
        })
    });
    Ok(Explored {
        schedules,
        results: results.len(),
        differing,
        difference,
    })
}

/// Returns a 128-bit digest of what a run found. Only the number of distinct results matters, and the findings of a
/// million schedules would not fit into memory.
fn digest(findings: &[Vec<Witness>]) -> [u64; 2] {
    [1_u8, 2].map(|salt| {
        let mut hasher = DefaultHasher::new();
        (salt, findings).hash(&mut hasher);
        hasher.finish()
    })
}

/// Returns the schedules to try, starting with those that show a known race.
fn candidates(program: &Program) -> impl Iterator<Item = Schedule> {
    let races = check(program).report.races;
    let targeted = races.into_iter().flat_map(|race| {
        [
            Schedule::Delaying(race.first),
            Schedule::DelayingCall(race.first),
            Schedule::Delaying(race.second),
        ]
    });
    targeted
        .chain([Schedule::Adversarial])
        .chain((1..).map(Schedule::Seeded))
}

/// The first difference of two runs, in call order.
struct Place {
    op: OpId,
    wrote: bool,
    arena: u32,
    start: u64,
    end: u64,
    writers: (Option<OpId>, Option<OpId>),
    atomics: (Option<u32>, Option<u32>),
}

/// Finds the first difference. Reads are compared before writes, since a different read says more than a different
/// overwrite.
fn first_difference(usual: &[Vec<Witness>], other: &[Vec<Witness>]) -> Option<Place> {
    let differing = |wrote: bool| {
        let both = usual.iter().zip(other).enumerate();
        let mut places = both.flat_map(move |(op, (usual, other))| {
            let of_kind = usual.iter().filter(move |w| w.wrote == wrote);
            of_kind.filter_map(move |a| {
                let (a, op) = (a.found, OpId(op as u32));
                let b = other
                    .iter()
                    .filter(|w| w.wrote == wrote)
                    .map(|w| w.found)
                    .find(|b| {
                        b.arena == a.arena && b.start < a.end && a.start < b.end && b.is_unlike(&a)
                    })?;
                Some(Place {
                    op,
                    wrote,
                    arena: a.arena,
                    start: a.start.max(b.start),
                    end: a.end.min(b.end),
                    writers: (a.writer, b.writer),
                    atomics: (a.atomics, b.atomics),
                })
            })
        });
        places.next()
    };
    differing(false).or_else(|| differing(true))
}

/// Returns the buffer through which an op touched these bytes, and the offset of the bytes in it.
fn buffer_of(run: &Run, op: OpId, wrote: bool, arena: u32, start: u64) -> Option<(BufferId, u64)> {
    run.accesses(op)
        .filter(|access| match access.mode {
            Mode::Read => !wrote,
            Mode::Write => wrote,
            Mode::MayWrite | Mode::Atomic => true,
        })
        .find_map(|access| {
            let (at, first, last) = run.sim.place(access);
            let inside = at == arena && (first..last).contains(&start);
            inside.then(|| (access.buffer, access.start + (start - first)))
        })
}
