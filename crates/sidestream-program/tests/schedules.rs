//! What a run finds in its memory depends on the schedule exactly where the oracle says that an order is missing.

use std::collections::BTreeMap;

use crate::oracle::generate::{Options, random_prog};
use crate::oracle::model::{Answer, Kind as Hazard, Race, judge};
use crate::oracle::vary::varied;
use sidestream::engine::Profile;
use sidestream::op::{Access, BufferId, Mode, OpId};
use sidestream::sim::{Found, Schedule};
use sidestream_program::{CannotRun, Command, Level, Limits, Lowered, Program, lower, parse, run};

const PROGRAMS: u64 = 3_000;

/// Bytes of some memory, independent of the buffers over it: which memory, first byte, one past the last.
type Bytes = (u32, u64, u64);

/// What one op found: the bytes, whether it wrote them, and who had written them before.
type Finding = (Bytes, bool, Found);

#[test]
fn a_copy_to_a_peer_takes_the_time_of_the_link_between_devices() {
    let time_ns = |copy: &str| {
        let text = format!(
            "name: copy\nbuffers: {{A: {{kind: dev, bytes: 67108864}}, B: {{kind: dev, bytes: 67108864}}}}\n\
             ops:\n- {{do: {copy}, s: s1, from: A, to: B}}\n"
        );
        let document = parse(&text, &Limits::default()).unwrap();
        let program = document.programs[0].as_ref().unwrap();
        let ran = run(program, &Profile::h200(), Schedule::InOrder, false).unwrap();
        ran.trace(program).end_ns()
    };
    let (within, across) = (time_ns("copy_async"), time_ns("copy_peer, peer: 1"));
    assert!(across > 3 * within, "{across} ns against {within} ns");
}

#[test]
fn results_depend_on_the_schedule_exactly_where_an_order_is_missing() {
    println!("seeds 0..{PROGRAMS}, options drawn from each seed");
    let (mut pairs, mut clean, mut stuck, mut schedules, mut other_results) = (0, 0, 0, 0, 0);
    for seed in 0..PROGRAMS {
        let mut prog = random_prog(seed, &Options::from_seed(seed));
        if seed % 2 == 1 {
            prog = varied(&prog, seed);
        }
        let answer = judge(&prog);
        let mut program = prog.to_program();
        // The allocator of the runtime level queries the device while the program is still being submitted, and a
        // delay cannot outlast work that is not submitted yet.
        program.level = Level::Checker;
        match compare(&program, &answer) {
            Ok(Some(shown)) => {
                pairs += shown.pairs;
                schedules += shown.schedules;
                other_results += shown.other_results;
                clean += u64::from(answer.races.is_empty());
            }
            Ok(None) => stuck += 1,
            Err(why) => panic!("seed {seed}: {why}\n{}", prog.to_yaml()),
        }
    }
    println!(
        "{pairs} unordered pairs shown, {clean} programs without one, {schedules} runs, {other_results} \
         of them with other results; {stuck} programs wait forever and are not compared"
    );
    assert!(
        pairs > 3_000 && clean > 1_000 && other_results > 1_000 && stuck * 50 < PROGRAMS,
        "the programs test something"
    );
}

/// What the runs of a program showed.
struct Shown {
    pairs: u64,
    schedules: u64,
    /// Number of schedules whose ops found, or that left, what other ops wrote than under the usual one.
    other_results: u64,
}

/// What every op found, and who wrote what is in every buffer at the end.
type Results = (Vec<Vec<Finding>>, Vec<Found>);

/// Runs a program under many schedules; returns none if it waits forever.
fn compare(program: &Program, answer: &Answer) -> Result<Option<Shown>, String> {
    let lowered = lower(program);
    let Some(usual) = findings(program, &lowered, Schedule::InOrder) else {
        return Ok(None);
    };
    let hazards = answer
        .races
        .iter()
        .filter(|race| race.kind != Hazard::Timing);
    let shared = |race: &Race| {
        let (first, second) = (race.first as u32, race.second as u32);
        (
            first,
            second,
            common(&touched(&lowered, first), &touched(&lowered, second)),
        )
    };
    let all: Vec<_> = hazards.clone().map(shared).collect();
    let racy: Vec<Bytes> = all.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
    let must: Vec<_> = hazards
        .filter(|race| race.adjacent.is_some())
        .map(shared)
        .collect();

    let mut schedules = vec![
        Schedule::Adversarial,
        Schedule::Seeded(1),
        Schedule::Seeded(2),
    ];
    schedules.extend(
        must.iter()
            .flat_map(|&(first, second, _)| targeted(first, second)),
    );
    let mut other_results = 0;
    let mut differences: BTreeMap<String, Vec<(u32, Bytes)>> = BTreeMap::new();
    for schedule in schedules {
        let name = schedule.to_string();
        if differences.contains_key(&name) {
            continue;
        }
        let found = findings(program, &lowered, schedule)
            .ok_or_else(|| format!("{schedule} gets stuck, in-order does not"))?;
        if found != usual {
            if all.is_empty() {
                return Err(format!("{schedule}: other results, and nothing races"));
            }
            other_results += 1;
        }
        let mut differing = Vec::new();
        for (op, (usual, found)) in usual.0.iter().zip(&found.0).enumerate() {
            differing.extend(unlike(usual, found).map(|bytes| (op as u32, bytes)));
        }
        if let Some((op, bytes)) = differing.iter().find(|(_, bytes)| !covered(*bytes, &racy)) {
            return Err(format!(
                "{schedule}: op {op} finds other {bytes:?}, and no pair races there"
            ));
        }
        differences.insert(name, differing);
    }
    for (first, second, both) in &must {
        let shows = targeted(*first, *second).into_iter().any(|schedule| {
            let differing = &differences[&schedule.to_string()];
            let of_pair = differing
                .iter()
                .filter(|(op, _)| op == first || op == second);
            of_pair
                .into_iter()
                .any(|&(_, bytes)| !common(&[bytes], both).is_empty())
        });
        if !shows {
            return Err(format!(
                "nothing shows that ops {first} and {second} are unordered"
            ));
        }
    }
    Ok(Some(Shown {
        pairs: must.len() as u64,
        schedules: 1 + differences.len() as u64,
        other_results,
    }))
}

/// Returns the schedules that put one op of a pair after the other, where that is allowed.
fn targeted(first: u32, second: u32) -> [Schedule; 4] {
    let (first, second) = (OpId(first), OpId(second));
    [
        Schedule::Delaying(first),
        Schedule::DelayingCall(first),
        Schedule::Delaying(second),
        Schedule::DelayingCall(second),
    ]
}

/// Returns what every op finds and what is left under a schedule; none if the program waits forever.
fn findings(program: &Program, lowered: &Lowered, schedule: Schedule) -> Option<Results> {
    let mut ran = match run(program, &Profile::h200(), schedule, true) {
        Ok(ran) => ran,
        Err(CannotRun::Stuck(_)) => return None,
        Err(error) => panic!("{schedule}: {error}"),
    };
    let of_op = |at: usize| -> Vec<Finding> {
        let seen = ran.sim.witness(OpId(at as u32)).iter();
        seen.map(|w| {
            (
                (w.found.arena, w.found.start, w.found.end),
                w.wrote,
                w.found,
            )
        })
        .collect()
    };
    let ops = 0..lowered.commands.len();
    let findings = ops.map(of_op).collect();
    let mut left = Vec::new();
    for (buffer, declared) in (0..).map(BufferId).zip(&lowered.buffers) {
        let whole = Access {
            buffer,
            start: 0,
            end: declared.size_bytes,
            mode: Mode::Read,
        };
        ran.sim.contents().found(&whole, |found| left.push(found));
    }
    Some((findings, left))
}

/// Returns the bytes of which two runs of an op found different writers.
fn unlike<'a>(usual: &'a [Finding], other: &'a [Finding]) -> impl Iterator<Item = Bytes> + 'a {
    usual.iter().flat_map(move |(bytes, wrote, found)| {
        let differing = (other.iter()).filter(move |f| f.1 == *wrote && f.2.is_unlike(found));
        differing.flat_map(move |(theirs, ..)| common(&[*bytes], &[*theirs]))
    })
}

fn common(a: &[Bytes], b: &[Bytes]) -> Vec<Bytes> {
    let mut common = Vec::new();
    for &(memory, start, end) in a {
        for &(other, from, to) in b.iter().filter(|bytes| bytes.0 == memory) {
            let (start, end) = (start.max(from), end.min(to));
            if start < end {
                common.push((other, start, end));
            }
        }
    }
    common
}

/// Returns whether every byte is in one of these ranges.
fn covered(bytes: Bytes, by: &[Bytes]) -> bool {
    let mut parts = common(&[bytes], by);
    parts.sort_unstable();
    let (_, mut at, end) = bytes;
    for (_, start, to) in parts {
        if start > at {
            return false;
        }
        at = at.max(to);
    }
    at >= end
}

/// Returns the bytes that an op touches.
fn touched(lowered: &Lowered, op: u32) -> Vec<Bytes> {
    let Command::Op(op) = &lowered.commands[op as usize] else {
        return Vec::new();
    };
    let place = |access: &Access| {
        let (mut buffer, mut offset) = (access.buffer, 0);
        while let Some((below, start)) = lowered.buffers[buffer.0 as usize].over {
            (buffer, offset) = (below, offset + start);
        }
        let earlier = &lowered.buffers[..buffer.0 as usize];
        let memory = earlier.iter().filter(|b| b.over.is_none()).count() as u32;
        (memory, access.start + offset, access.end + offset)
    };
    op.accesses.iter().map(place).collect()
}
