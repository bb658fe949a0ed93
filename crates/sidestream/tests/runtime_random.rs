//! Random programs through the safe API: results are those of one call after another, the checker finds nothing,
//! nothing leaks and nothing hangs.
//!
//! `SEED=17 cargo test -p sidestream --test tests runtime_random` runs the programs of one seed.

use std::collections::HashMap;

use crate::random_programs::hold::{hold, is_wrong};
use crate::random_programs::plan::Plan;
use crate::random_programs::run::run_plan;
use crate::random_programs::watch::{Seen, read_again};
use sidestream::log::Record;
use sidestream::op::{EventId, Kind, Op, ThreadId};
use sidestream::order::{Chain, Clocks, Force, Order, Steps};

/// Programs on one host thread, and programs on several: their numbers in `cargo xtask nightly`, and for every
/// change.
/// docs/developers/reliability.md says how many of them notice a broken runtime.
const ON_ONE_THREAD: (u64, u64) = (60_000, 3_000);
const ON_SEVERAL: (u64, u64) = (40_000, 1_500);

#[test]
fn programs_on_one_thread_give_the_results_of_one_call_after_the_other() {
    hold(ON_ONE_THREAD, |seed| Plan::draw(seed, false));
}

#[test]
fn programs_on_several_threads_give_the_results_of_one_call_after_the_other() {
    hold(ON_SEVERAL, |seed| Plan::draw(seed, true));
}

#[test]
fn without_tracking_results_are_wrong_and_the_checker_finds_races() {
    const PROGRAMS: u64 = 300;
    println!("seeds 0..{PROGRAMS}, untracked");
    let (mut wrong, mut racy) = (0, 0);
    for seed in 0..PROGRAMS {
        let plan = Plan {
            is_tracking: false,
            ..Plan::plain(seed)
        };
        let outcome = run_plan(&plan);
        assert_eq!(outcome.waits_inserted, 0);
        wrong += u64::from(!outcome.wrong.is_empty());
        racy += u64::from(!outcome.races.is_empty());
        // With tracking that program is right, so the waits make it right.
        let tracked = run_plan(&Plan::plain(seed));
        assert_eq!(is_wrong(&tracked), None, "seed {seed}");
    }
    println!("{wrong} with wrong results, {racy} with races");
    assert!(wrong >= PROGRAMS / 4, "{wrong}");
    assert!(racy >= PROGRAMS / 2, "{racy}");
}

#[test]
fn every_wait_that_is_inserted_was_missing_and_is_needed() {
    const PROGRAMS: u64 = 400;
    println!("seeds 0..{PROGRAMS}, nothing fails");
    let mut waits = 0;
    for seed in 0..PROGRAMS {
        let plan = Plan::plain(seed);
        let outcome = run_plan(&plan);
        assert_eq!(is_wrong(&outcome), None, "seed {seed}");
        outcome.watch.seen(|seen| {
            let inserted = missing_waits(seed, seen);
            assert_eq!(inserted.len() as u64, outcome.waits_inserted, "seed {seed}");
            if plan.streams == 1 {
                assert!(inserted.is_empty(), "seed {seed}");
            }
            for &wait in &inserted {
                let without = read_again(seen, |at| at == wait);
                let races = without.report().races;
                assert!(!races.is_empty(), "seed {seed}: op {wait} is not needed");
            }
            assert!(read_again(seen, |_| false).report().races.is_empty());
            waits += inserted.len();
        });
    }
    println!("{waits} waits, each of them missing and needed");
    assert!(waits > 2_000, "{waits}");
}

/// Returns the waits of a program that requests none itself. By the rule book none of them waits for work that its
/// stream was ordered after already.
fn missing_waits(seed: u64, seen: &Seen) -> Vec<usize> {
    let mut order = Order::new();
    let mut clocks = Clocks::new(Force::Promised);
    let mut steps = Steps::new();
    let mut records = HashMap::new();
    let mut inserted = Vec::new();
    for (_, declared) in &seen.declared {
        if let Record::Stream { kind, device, .. } = declared {
            order.add_stream(*kind, *device);
        } else if let Record::Event { timing, device, .. } = declared {
            order.add_event(*timing, *device);
        }
    }
    for (at, op) in seen.ops.iter().enumerate() {
        if let Kind::Wait { stream, event } = op.kind {
            let recorded = records[&event];
            let is_known = clocks.ordered(recorded, Chain::Stream(stream))
                || clocks.ordered(recorded, Chain::Thread(op.thread));
            assert!(!is_known, "seed {seed}: {op:?} waits for complete work");
            inserted.push(at);
        }
        order.push(op, &mut steps).expect("the driver took it");
        for step in &steps {
            let epoch = clocks.apply(step, &order);
            if let Kind::Record { event, .. } = op.kind {
                records.insert(event, epoch);
            }
        }
    }
    inserted
}

#[test]
fn a_seed_gives_one_run() {
    const PROGRAMS: u64 = 300;
    println!("seeds 0..{PROGRAMS}, twice");
    let mut whole = 0;
    for seed in 0..PROGRAMS {
        let plan = Plan {
            listens: true,
            // Values of refused calls, and results without a waiter, are dropped on a thread of the runtime, at a
            // time that no seed determines.
            faults: 0,
            traps: false,
            drops: false,
            ..Plan::draw(seed, false)
        };
        let ops = || run_plan(&plan).watch.seen(|seen| seen.ops.clone());
        let (first, again) = (ops(), ops());
        // A result without a waiter is dropped on a thread of the runtime, at a time that no seed determines: from
        // there on two runs may differ.
        let is_own = |op: &&Op| op.thread == ThreadId(0);
        let own = |ops: &[Op]| ops.iter().take_while(is_own).count();
        let compared = own(&first).min(own(&again));
        for at in 0..compared {
            let same = without_event(&first[at]) == without_event(&again[at]);
            assert!(
                same,
                "seed {seed}, op {at}: {:?}, {:?}",
                first[at], again[at]
            );
        }
        whole += u64::from(compared == first.len() && compared == again.len());
    }
    println!("{whole} of them to the end");
    assert!(whole > PROGRAMS / 2, "{whole}");
}

/// Returns an op without its event, since which spare event is used depends on that thread, too.
fn without_event(op: &Op) -> Op {
    let event = EventId(0);
    let kind = match op.kind {
        Kind::Record { stream, .. } => Kind::Record { event, stream },
        Kind::Wait { stream, .. } => Kind::Wait { stream, event },
        Kind::SyncEvent { .. } => Kind::SyncEvent { event },
        Kind::QueryEvent { done, .. } => Kind::QueryEvent { event, done },
        Kind::Elapsed { .. } => Kind::Elapsed {
            from: event,
            to: event,
        },
        other => other,
    };
    Op { kind, ..op.clone() }
}
