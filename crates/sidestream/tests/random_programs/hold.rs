//! Runs the programs of many seeds, and reports for a wrong one its failure and its shortest form.

use std::sync::atomic::{AtomicU64, Ordering};

use super::act::{Act, draw};
use super::plan::Plan;
use super::run::{Outcome, run, run_plan};

/// Runs the nightly or the usual number of programs.
pub fn hold((nightly, every_day): (u64, u64), plan: impl Fn(u64) -> Plan + Sync) {
    let seeds = seeds(match std::env::var_os("SIDESTREAM_NIGHTLY") {
        Some(_) => nightly,
        None => every_day,
    });
    println!("seeds {seeds:?}");
    let next = AtomicU64::new(seeds.start);
    // One more than the cores of a small machine would only take turns.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let plan = plan(seed);
                    let outcome = run_plan(&plan);
                    if let Some(why) = is_wrong(&outcome) {
                        next.store(seeds.end, Ordering::Relaxed);
                        panic!("{}", told(&plan, why, &outcome));
                    }
                }
            });
        }
    });
}

/// Returns what is wrong, if anything.
pub fn is_wrong(outcome: &Outcome) -> Option<String> {
    outcome.wrong.first().or(outcome.races.first()).cloned()
}

/// Returns the failure, and the shortest program found that shows it.
fn told(plan: &Plan, why: String, outcome: &Outcome) -> String {
    let mut programs = draw(plan);
    let mut why = why;
    // With several threads, dropping a call does not reproduce the rest of the run.
    if plan.threads == 1 {
        let mut at = 0;
        while at < programs[0].len() {
            let mut fewer = programs.clone();
            fewer[0].remove(at);
            match is_wrong(&run(plan, &fewer)) {
                Some(still) => (why, programs) = (still, fewer),
                None => at += 1,
            }
        }
    }
    let acts = programs.iter().enumerate().flat_map(|(thread, program)| {
        let line = move |act: &Act| format!("  thread {thread}: {act:?}\n");
        program.iter().map(line)
    });
    let acts: String = acts.collect();
    // The calls of several threads are not repeated in the same order.
    let ops: String = match plan.threads {
        1 => String::new(),
        _ => outcome.watch.seen(|seen| {
            let ops = seen.ops.iter();
            ops.map(|op| format!("  {op:?}\n")).collect()
        }),
    };
    format!("SEED={}: {why}\n{plan:?}\n{acts}{ops}", plan.seed)
}

fn seeds(programs: u64) -> std::ops::Range<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..programs,
    }
}
