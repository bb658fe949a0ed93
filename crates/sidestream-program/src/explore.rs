//! Running a program under many legal schedules, to see whether they agree.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use sidestream::engine::Profile;
use sidestream::op::{BufferId, OpId};
use sidestream::sim::{Schedule, Witness};

use crate::check::check;
use crate::program::Program;
use crate::run::{CannotRun, Run, run};

/// What many schedules of one program came to.
pub struct Explored {
    /// How many were run.
    pub schedules: usize,
    /// How many different results they had.
    pub results: usize,
    /// Two schedules with different results, if there are any.
    pub difference: Option<Difference>,
}

/// Two runs that found different bytes.
pub struct Difference {
    /// The usual run, and its schedule.
    pub usual: (Schedule, Run),
    /// The other one.
    pub other: (Schedule, Run),
    /// The first op that found something else.
    pub op: OpId,
    /// On which buffer.
    pub buffer: BufferId,
    /// Whether it read those bytes or wrote over them.
    pub wrote: bool,
    /// The bytes of the buffer.
    pub range: (u64, u64),
    /// Who had written them, in the usual run and in the other.
    pub writers: (Option<OpId>, Option<OpId>),
}

/// Runs a program under `count` legal schedules: as usual; with each side of each race that the
/// checker finds as late as it can be; adversarially; and then in seeded orders.
///
/// # Errors
/// If the program cannot be run as usual. A schedule that waits forever is left out.
pub fn explore(program: &Program, profile: &Profile, count: usize) -> Result<Explored, CannotRun> {
    let usual = run(program, profile, Schedule::InOrder, true)?;
    let findings = |run: &Run| -> Vec<Vec<Witness>> {
        let ops = 0..program.ops.len() as u32;
        ops.map(|at| run.sim.witness(OpId(at)).to_vec()).collect()
    };
    let usual_findings = findings(&usual);
    let mut results = HashSet::from([digest(&usual_findings)]);
    let mut schedules = 1;
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
        results.insert(digest(&other_findings));
    }
    let difference = found.and_then(|(schedule, other, place)| {
        let (buffer, start) = buffer_of(&usual, place.op, place.wrote, place.arena, place.start)?;
        Some(Difference {
            op: place.op,
            buffer,
            wrote: place.wrote,
            range: (start, start + (place.end - place.start)),
            writers: place.writers,
            usual: (Schedule::InOrder, usual),
            other: (schedule, other),
        })
    });
    Ok(Explored {
        schedules,
        results: results.len(),
        difference,
    })
}

/// What a run found, in 128 bits: only how many differ is asked, and all that a million schedules found
/// would not fit into memory.
fn digest(findings: &[Vec<Witness>]) -> [u64; 2] {
    [1_u8, 2].map(|salt| {
        let mut hasher = DefaultHasher::new();
        (salt, findings).hash(&mut hasher);
        hasher.finish()
    })
}

/// The schedules to try, those that show a known race first.
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

/// Where two runs differ first, in the order of the calls.
struct Place {
    op: OpId,
    wrote: bool,
    arena: u32,
    start: u64,
    end: u64,
    writers: (Option<OpId>, Option<OpId>),
}

/// What an op reads tells more than what it writes over, so reads are looked at first.
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
                        b.arena == a.arena
                            && b.start < a.end
                            && a.start < b.end
                            && b.writer != a.writer
                    })?;
                Some(Place {
                    op,
                    wrote,
                    arena: a.arena,
                    start: a.start.max(b.start),
                    end: a.end.min(b.end),
                    writers: (a.writer, b.writer),
                })
            })
        });
        places.next()
    };
    differing(false).or_else(|| differing(true))
}

/// The buffer through which an op touched some bytes, and where they start in it.
fn buffer_of(run: &Run, op: OpId, wrote: bool, arena: u32, start: u64) -> Option<(BufferId, u64)> {
    run.accesses(op)
        .filter(|access| (access.mode == sidestream::op::Mode::Write) == wrote)
        .find_map(|access| {
            let (at, first, last) = run.sim.place(access);
            let inside = at == arena && (first..last).contains(&start);
            inside.then(|| (access.buffer, access.start + (start - first)))
        })
}
