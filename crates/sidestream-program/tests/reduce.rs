//! A recorded run is reduced to the shortest program that still has its race.

use std::collections::BTreeMap;

use crate::fixes::{devices_of_streams, with_fix};
use crate::oracle;
use crate::oracle::generate::{Options, random_prog};
use crate::oracle::prog::Prog;
use sidestream::check::{MEMORY_BYTES, RaceKind, replay};
use sidestream::engine::Profile;
use sidestream::log::{Reader, Record, Writer};
use sidestream::op::{
    Access, BufferId, DeviceId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId, StreamKind,
    ThreadId,
};
use sidestream_program::{
    CannotReduce, Limits, Pair, Program, Reduced, check, explore, parse, record, reduce, unmet,
};

fn program(text: &str) -> Program {
    let document = parse(text, &Limits::default()).expect("a document");
    let program = document.programs.into_iter().next().expect("a program");
    program.expect("follows the format")
}

fn reduced(text: &str) -> Reduced {
    let log = record(&program(text)).expect("a log");
    let reduced = reduce(&log, None, &[], MEMORY_BYTES);
    reduced.expect("can be said").expect("a race")
}

/// Checks the result of reducing a program, without the lines that every one has.
#[track_caller]
fn is_left(text: &str, expected: &str) {
    let reduced = reduced(text);
    let text = reduced.text("left", |_| String::new());
    let (_, ops) = text.split_once("note: ").expect("a note");
    let (_, ops) = ops.split_once('\n').expect("ops");
    assert_eq!(ops, expected, "{text}");
}

#[test]
fn two_calls_of_a_long_program_are_left() {
    let around = "- {do: kernel, s: s3, w: [E]}\n- {do: wait_stream, s: s1, src: s3}\n".repeat(500);
    let text = format!(
        "name: x
buffers: {{big: {{kind: dev, bytes: 1048576}}}}
ops:
{around}- {{do: copy_async, s: s1, from: H, to: A}}
- {{do: kernel, s: s1, r: [A, B], w: [\"big[0:524288]\"]}}
- {{do: record, ev: e, s: s3}}
- {{do: wait, s: s2, ev: e}}
- {{do: kernel, s: s2, r: [E, \"big[4096:8192]\"], w: [C]}}
- {{do: sync_device}}
{around}"
    );
    is_left(
        &text,
        "buffers: {big: dev}
ops:
- {do: kernel, s: s1, w: [big]}  # call 1001, 524288 bytes
- {do: kernel, s: s2, r: [\"big[256:768]\"]}  # call 1004, 4096 bytes
expect: {v: race, must: [[RAW, big, 0, 1]]}
# fix: wait_stream s=s2 src=s1 before 1
",
    );
}

#[test]
fn memory_that_was_handed_on_keeps_the_calls_that_did_it() {
    is_left(
        "name: x
ops:
- {do: alloc, buf: A, s: s1}
- {do: kernel, s: s1, w: [A]}
- {do: wait_stream, s: s2, src: s1}
- {do: kernel, s: s2, r: [A], w: [D]}
- {do: free, buf: A}
- {do: alloc, buf: B, s: s1, over: A}
- {do: kernel, s: s1, w: [B]}
",
        "ops:
- {do: kernel, s: s2, r: [A]}  # call 3, 1024 bytes
- {do: free, buf: A}  # call 4
- {do: alloc, buf: B, s: s1, over: A, after_events: true}  # call 5
- {do: kernel, s: s1, w: [B]}  # call 6, 1024 bytes
expect: {v: race, must: [[UAF, B, 0, 3]]}
# fix: record_stream buf=A st=s2 before 1
",
    );
}

#[test]
fn a_time_that_is_asked_too_early_keeps_its_events() {
    is_left(
        "name: x
events: {a: no_timing}
ops:
- {do: record, ev: e, s: s1}
- {do: kernel, s: s1, r: [A]}
- {do: record, ev: f, s: s1}
- {do: sync_event, ev: e}
- {do: record, ev: a, s: s2}
- {do: elapsed, a: e, b: f}
",
        "ops:
- {do: record, ev: e0, s: s1}  # call 0
- {do: record, ev: e1, s: s1}  # call 2
- {do: elapsed, a: e0, b: e1}  # call 5
expect: {v: race, must: [[TIMING, null, 1, 2]]}
# fix: sync_event ev=e1 before 2
",
    );
}

#[test]
fn a_run_without_a_race_leaves_nothing() {
    let log = record(&program("name: x\nops:\n- {do: kernel, s: s1, w: [A]}\n")).expect("a log");
    assert!(
        reduce(&log, None, &[], MEMORY_BYTES)
            .expect("a log")
            .is_none()
    );
}

#[test]
fn a_race_that_the_log_does_not_have_is_refused() {
    let log = record(&program(
        "name: x\nops:\n- {do: kernel, s: s1, w: [A]}\n- {do: kernel, s: s2, w: [A]}\n",
    ));
    let none = Pair {
        first: OpId(7),
        second: OpId(9),
        buffer: None,
    };
    let refused = reduce(&log.expect("a log"), Some(none), &[], MEMORY_BYTES);
    assert!(matches!(refused, Err(CannotReduce::NotThere)));
}

/// A recorded run of a million calls, half of which concern the racing memory.
#[test]
fn a_run_of_a_million_calls_is_reduced() {
    let mut log = Writer::new(Vec::new()).expect("a log");
    let mut declare = |record: Record<'_>| log.take(&record).expect("a declaration");
    for name in ["load", "main", ""] {
        declare(Record::stream(StreamKind::NonBlocking, DeviceId(0), name));
    }
    declare(Record::thread(""));
    declare(Record::site("loop.rs:7"));
    for name in ["x", ""] {
        declare(Record::buffer(Memory::Device, 1 << 20, None, name));
    }
    let streams = [0, 1, 2].map(StreamId);
    let [x, other] = [0, 1].map(BufferId);
    let (thread, site) = (ThreadId(0), SiteId(0));
    let mut next = 0;
    let mut call = |kind: Kind, access: Option<(BufferId, Mode)>| {
        let accesses = access.map(|(buffer, mode)| Access {
            buffer,
            start: 0,
            end: 1 << 20,
            mode,
        });
        let (id, accesses) = (OpId(next), accesses.into_iter().collect());
        next += 1;
        let op = Op {
            id,
            thread,
            site,
            kind,
            accesses,
        };
        log.take(&Record::op(&op)).expect("a call");
    };
    let kernel = Kind::kernel;
    let [load, main, third] = streams;
    call(kernel(load), Some((x, Mode::Write)));
    for _ in 0..500_000 {
        call(
            Kind::RecordStream {
                buffer: x,
                stream: third,
            },
            None,
        );
        call(kernel(third), Some((other, Mode::Write)));
    }
    call(kernel(main), Some((x, Mode::Read)));
    let log = log.finish().expect("a log");
    let left = reduce(&log, None, &[], MEMORY_BYTES).expect("can be said");
    let left = left.expect("a race");
    assert_eq!(
        (left.operations, left.program.ops.len(), left.is_shortest),
        (1_000_002, 2, true)
    );
    let text = left.text("left", |call| left.sites[call.site.0 as usize].clone());
    let last = "- {do: kernel, s: main, r: [x]}  # call 1000001, 1048576 bytes: loop.rs:7\n";
    assert!(text.contains(last), "{text}");
}

/// For each race of random programs: the reduced program has that race and no other, is clean with the fix, is
/// reproducible, and shows the race in some schedule.
#[test]
fn reduced_random_programs_have_their_race() {
    let programs = oracle::programs(400, 4_000);
    println!("seeds 0..{programs}, options drawn from each seed");
    let profile = Profile::h200();
    let (mut lengths, mut unsayable, mut hidden, mut all) = (BTreeMap::new(), 0, 0, 0);
    for seed in 0..programs {
        let options = Options {
            runtime: false,
            ..Options::from_seed(seed)
        };
        let prog = random_prog(seed, &options);
        let Ok(log) = record(&prog.to_program()) else {
            continue;
        };
        let found = Reader::new(&log[..]).and_then(|log| replay(log, MEMORY_BYTES));
        for race in found.expect("a log").report.races {
            let pair = Pair {
                first: race.first,
                second: race.second,
                buffer: race.buffer,
            };
            all += 1;
            let left = match reduce(&log, Some(pair), &[], MEMORY_BYTES) {
                Ok(left) => left.expect("the race is there"),
                Err(CannotReduce::Unsayable) => {
                    println!("seed {seed} cannot be said: {pair:?}\n{}", prog.to_yaml());
                    unsayable += 1;
                    continue;
                }
                Err(error) => panic!("seed {seed}, {pair:?}: {error}"),
            };
            let text = left.text("left", |_| String::new());
            let again = reduce(&log, Some(pair), &[], MEMORY_BYTES);
            let again = again.expect("as before").expect("as before");
            assert_eq!(text, again.text("left", |_| String::new()), "seed {seed}");
            let left = program(&text);
            let checked = check(&left);
            let expect = left
                .expect
                .as_ref()
                .expect("what is left says what it shows");
            let wrong = unmet(expect, &checked);
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?}\n{text}");
            *lengths.entry(left.ops.len()).or_insert(0) += 1;
            let kept = &checked.report.races;
            assert!(
                kept.iter().any(|kept| kept.kind == race.kind),
                "seed {seed}\n{text}"
            );
            let mut fixed = with_fixes(&Prog::from_program(&left));
            if race.kind == RaceKind::Timing {
                // Of two events that are not known to be complete, one is reported at a time.
                fixed = with_fixes(&fixed);
            }
            let silent = check(&fixed.to_program()).report;
            assert!(
                silent.races.is_empty(),
                "seed {seed}\n{text}\n{}",
                fixed.to_yaml()
            );
            let explored = explore(&left, &profile, 16);
            let shown = explored.is_ok_and(|explored| explored.difference.is_some());
            if !shown && race.kind != RaceKind::Timing {
                println!("seed {seed} does not show\n{text}");
                hidden += 1;
            }
        }
    }
    println!(
        "{all} races, ops left: {lengths:?}; {unsayable} cannot be said, {hidden} do not show"
    );
    assert!(all > programs as usize);
    // A program cannot name bytes by a buffer that has since been replaced by another at the same place.
    assert!(unsayable * 100 <= all && hidden == 0);
}

/// Returns the program with the fix of each of its races inserted.
fn with_fixes(prog: &Prog) -> Prog {
    let program = prog.to_program();
    let (checked, order) = (check(&program), devices_of_streams(&program));
    let races = checked.report.races.iter().rev();
    races.fold(prog.clone(), |fixed, race| {
        with_fix(&fixed, race, &checked.names, &order).0
    })
}
